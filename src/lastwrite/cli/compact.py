"""``lastwrite compact``: compacts a log in place or into a copy."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from lastwrite.cli import options
from lastwrite.cli.output import Output
from lastwrite.cli.plan import show_compaction

EXAMPLES = r"""
lastwrite compact /var/lib/kafka --topic orders
lastwrite compact /var/lib/rocketmq/store --to /backup/store
lastwrite compact s3://backup/cluster1 --config cleanup.policy=compact
lastwrite compact persistent://public/default/orders \
  --config metadataStoreUrl=zk:zoo1:2181
"""


def compact(
    context: typer.Context,
    paths: options.PathsArgument,
    to: Annotated[
        str | None,
        options.option(
            "--to DIR",
            "Write cleaned copies below DIR and leave PATH unchanged. Kafka and RocketMQ:"
            " also an archive in a bucket, s3://bucket/prefix.",
        ),
    ] = None,
    system: options.System = None,
    topic: options.Topics = None,
    partition: options.Partition = None,
    config: options.Config = None,
    config_file: options.ConfigFile = None,
    topic_config: options.TopicConfig = None,
    topic_config_file: options.TopicConfigFile = None,
    metadata: options.Metadata = None,
    now: options.Now = None,
    exact: options.Exact = False,
    include_active: options.IncludeActive = False,
    like_broker: options.LikeBroker = False,
    keep_scans: options.KeepScans = False,
    unclean: options.Unclean = False,
    drop_keyless: options.DropKeyless = False,
    drop_expired_deletes: options.DropExpiredDeletes = False,
    archive: options.Archive = None,
    memory: options.Memory = None,
    master: options.Master = options.DEFAULT_MASTER,
    conf: options.Conf = None,
    json: options.Json = False,
) -> int:
    """Compact a log in place or into a copy.

    Each partition is compacted as the cleaner of its system would do it now. Then the segments
    that have expired by its cleanup.policy are deleted. A log that a broker has open is refused,
    except a Kafka log with --to. A damaged partition is left unchanged.
    """
    output: Output = context.obj
    from lastwrite.spark.session import start_ahead

    spark_settings = options.pairs("--conf", conf)
    if all(os.path.exists(path) or path.startswith("persistent://") for path in paths):
        # Start Spark early, so that it starts while the other modules are imported.
        start_ahead(master, spark_settings, output.say, options.system_at(paths[0], system))
    import lastwrite

    report = lastwrite.compact(
        paths,
        to=to,
        system=system,
        topic=topic,
        partition=partition,
        config=options.settings(output, config, config_file, unclean),
        now_ms=now,
        exact=exact,
        include_active=include_active,
        like_broker=like_broker,
        memory=memory,
        master=master,
        conf=spark_settings,
        progress=output.progress(),
        keep_scans=keep_scans,
        archive=archive,
        topic_config=options.topic_settings(topic_config, topic_config_file),
        metadata=metadata,
        drop_keyless=drop_keyless,
        drop_expired_deletes=drop_expired_deletes,
    )
    show_compaction(output, report)
    return report.exit_status
