"""Tests of ``--config-file`` with the file of a broker or client."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastwrite.cli.options import settings
from lastwrite.cli.output import Output
from lastwrite.errors import InvalidConfig
from lastwrite.kafka.rules.settings import KafkaTopicConfig
from lastwrite.pulsar.rules.live_settings import LiveConfig, Login, rules_of
from lastwrite.pulsar.rules.settings import PulsarConfig
from lastwrite.rocketmq.rules.dispatch_settings import DispatchConfig
from lastwrite.rocketmq.rules.settings import RocketmqConfig

# Configuration files of the distributions, without comments.
ROCKETMQ_N0 = """brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = -1
brokerRole = SLAVE
deleteWhen = 04
fileReservedTime = 48
enableControllerMode = true
controllerAddr = 127.0.0.1:9878
namesrvAddr = 127.0.0.1:9876
allAckInSyncStateSet=true
listenPort=30911
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
"""
ROCKETMQ_S3 = """brokerRole = ASYNC_MASTER
messageStorePlugIn = org.apache.rocketmq.tieredstore.TieredMessageStore
tieredBackendServiceProvider = org.apache.rocketmq.tieredstore.provider.s3.S3FileSegment
tieredStorageLevel = FORCE
tieredStoreGroupCommitCount = 1
objectStoreRegion = ""
"""
AUTOMQ = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listener.security.protocol.map=CONTROLLER:PLAINTEXT
log.dirs=/tmp/kraft-combined-logs
transaction.state.log.min.isr=1
log.retention.hours=168
create.topic.policy.class.name=kafka.server.es.ElasticCreateTopicPolicy
elasticstream.enable=true
s3.endpoint=https://s3.amazonaws.com
s3.region=us-east-1
autobalancer.controller.enable=false
"""
PULSAR_CLIENT = """webServiceUrl=http://localhost:8080/
brokerServiceUrl=pulsar://localhost:6650/
authPlugin=
authParams=
tlsAllowInsecureConnection=false
tlsEnableHostnameVerification=false
useKeyStoreTls=false
tlsTrustStorePath=
webserviceTlsProvider=
"""


def taken(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> tuple[dict[str, object], str]:
    """The settings read from a file with this text, and the standard error."""
    file = folder / "broker.conf"
    file.write_text(text)
    return settings(Output(), None, str(file)), capsys.readouterr().err


def test_rocketmq_broker_file_is_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, said = taken(tmp_path, ROCKETMQ_N0, capsys)
    assert (len(names), said) == (13, "")
    RocketmqConfig.from_names(names)
    commit_log = DispatchConfig.from_names(names).commit_log_folders
    assert commit_log == "/tmp/rmqstore/node00/commitlog"


def test_unknown_plugin_settings_are_named_once_and_ignored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, said = taken(tmp_path, ROCKETMQ_S3, capsys)
    assert said == (
        f"lastwrite: {tmp_path}/broker.conf: Lastwrite ignores unknown settings: objectStoreRegion\n"
    )
    RocketmqConfig.from_names(names)
    assert names["tieredStorageLevel"] == "FORCE"


def test_automq_broker_file_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, said = taken(tmp_path, AUTOMQ, capsys)
    assert said.endswith(
        ": autobalancer.controller.enable, elasticstream.enable, s3.endpoint, s3.region\n"
    )
    assert KafkaTopicConfig.from_names(names).retention_ms == 168 * 3_600_000


def test_pulsar_client_file_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names, said = taken(tmp_path, PULSAR_CLIENT, capsys)
    assert said == ""
    PulsarConfig.from_names(rules_of(names))
    live = LiveConfig.from_names({**names, "metadataStoreUrl": "zk:h:2181"})
    assert (live.brokers, live.login) == ("pulsar://localhost:6650/", Login())


def test_likely_typing_error_is_listed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(f"x.{n}=1\n" for n in range(9)) + "delete.retention.mss=5\n"
    names, said = taken(tmp_path, text, capsys)
    assert names == {}
    assert ": delete.retention.mss (did you mean delete.retention.ms?), x.0, x.1, " in said
    assert said.endswith(", x.6 and 2 more\n")


def test_typing_error_on_the_command_line_is_an_error_despite_a_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\n")
    names = settings(Output(), ["brokerNam=a"], str(file))
    with pytest.raises(InvalidConfig, match="did you mean brokerName"):
        RocketmqConfig.from_names(names)


def test_file_of_another_system_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names, said = taken(tmp_path, "brokerName=a\n", capsys)
    assert said == ""
    with pytest.raises(InvalidConfig, match="there is no setting 'brokerName'"):
        KafkaTopicConfig.from_names(names)
