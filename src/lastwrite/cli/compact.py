"""``lastwrite compact``: clean a log, in place or into a copy."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from lastwrite.cli.options import (
    DEFAULT_MASTER,
    ArchiveOption,
    ConfigFileOption,
    ConfigOption,
    ConfOption,
    DropKeylessOption,
    ExactOption,
    IncludeActiveOption,
    JsonOption,
    KeepScansOption,
    LikeBrokerOption,
    MasterOption,
    MemoryOption,
    MetadataOption,
    NowOption,
    PartitionOption,
    PathsArgument,
    SystemOption,
    TopicConfigFileOption,
    TopicConfigOption,
    TopicOption,
    UncleanOption,
    pairs,
    settings,
    topic_settings,
)
from lastwrite.cli.output import Output
from lastwrite.cli.plan import show_compaction


def compact(
    context: typer.Context,
    paths: PathsArgument,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="DIR", help="Write cleaned copies below DIR; PATH stays as it is."
        ),
    ] = None,
    system: SystemOption = None,
    topic: TopicOption = None,
    partition: PartitionOption = None,
    config: ConfigOption = None,
    config_file: ConfigFileOption = None,
    topic_config: TopicConfigOption = None,
    topic_config_file: TopicConfigFileOption = None,
    metadata: MetadataOption = None,
    now: NowOption = None,
    exact: ExactOption = False,
    include_active: IncludeActiveOption = False,
    like_broker: LikeBrokerOption = False,
    keep_scans: KeepScansOption = False,
    unclean: UncleanOption = False,
    drop_keyless: DropKeylessOption = False,
    archive: ArchiveOption = None,
    memory: MemoryOption = None,
    master: MasterOption = DEFAULT_MASTER,
    conf: ConfOption = None,
    json: JsonOption = False,
) -> int:
    """Clean a log, in place or into a copy.

    Each partition gets what its system's own cleaner would do to it now, and after that loses the
    segments that have expired by its cleanup.policy. A log that a broker holds is refused; a
    damaged partition is left exactly as it was.

    \b
      lastwrite compact /var/lib/kafka --topic orders
      lastwrite compact /var/lib/rocketmq/store --to /backup/store
      lastwrite compact persistent://public/default/orders --config metadataStoreUrl=zk:zoo1:2181
    """
    from lastwrite.spark.session import start_ahead

    spark_settings = pairs("--conf", conf)
    if all(os.path.exists(path) or path.startswith("persistent://") for path in paths):
        start_ahead(master, spark_settings)  # it comes up while all else is imported
    import lastwrite

    output: Output = context.obj
    report = lastwrite.compact(
        paths,
        to=to,
        system=system,
        topic=topic,
        partition=partition,
        config=settings(config, config_file, unclean),
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
        topic_config=topic_settings(topic_config, topic_config_file),
        metadata=metadata,
        drop_keyless=drop_keyless,
    )
    show_compaction(output, report)
    return report.exit_status
