"""The settings of Kafka 4.4.0 that DescribeConfigs lists: their types and defaults.

The tables are from the responses of a broker 4.4.0 on Linux with Java 17. A name without ``=`` has
no default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple


class SettingType(IntEnum):
    """The type of a setting, as numbered in DescribeConfigs."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Definition(NamedTuple):
    """The definition of a setting: its type and its default.

    The default is ``default``, or the value of the broker setting ``broker_name``. If both are
    None, the setting has no default.
    """

    type: SettingType
    default: str | None = None
    broker_name: str | None = None
    is_dynamic: bool = True  # whether the setting can be changed while the broker runs


_T = SettingType

# Settings of a broker, by type and whether they are dynamic.
_BROKER = {
    (_T.BOOLEAN, False): """
auto.create.topics.enable=true auto.leader.rebalance.enable=true controlled.shutdown.enable=true
controller.quorum.auto.join.enable=false delete.topic.enable=true log.cleaner.enable=true
remote.log.storage.system.enable=false sasl.oauthbearer.allow.unverified.audience=false
sasl.oauthbearer.allow.unverified.issuer=false sasl.oauthbearer.assertion.claim.jti.include=false
ssl.allow.dn.changes=false ssl.allow.san.changes=false transaction.two.phase.commit.enable=false
""",
    (_T.BOOLEAN, True): """
errors.deadletterqueue.auto.create.topics.enable=false
follower.fetch.last.tiered.offset.enable=false log.preallocate=false
transaction.partition.verification.enable=true unclean.leader.election.enable=false
""",
    (_T.STRING, False): """
authorizer.class.name= broker.rack group.consumer.migration.policy=bidirectional
inter.broker.listener.name metadata.log.dir metrics.recording.level=INFO
remote.log.metadata.manager.class.name=org.apache.kafka.server.log.remote.metadata\
.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path remote.log.metadata.manager.impl.prefix=rlmm.config.
remote.log.metadata.manager.listener.name remote.log.storage.manager.class.name
remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix=rsm.config.
replica.selector.class sasl.mechanism.controller.protocol=GSSAPI
sasl.oauthbearer.assertion.algorithm=RS256 sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.expected.issuer sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.scope
sasl.oauthbearer.scope.claim.name=scope sasl.oauthbearer.sub.claim.name=sub
sasl.oauthbearer.token.endpoint.url security.inter.broker.protocol=PLAINTEXT security.providers
ssl.principal.mapping.rules=DEFAULT
""",
    (_T.STRING, True): """
compression.type=producer errors.deadletterqueue.topic.name.prefix=dlq.
listener.security.protocol.map=SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL\
,SASL_PLAINTEXT:SASL_PLAINTEXT
log.message.timestamp.type=CreateTime max.connections.per.ip.overrides=
sasl.kerberos.kinit.cmd=/usr/bin/kinit sasl.kerberos.service.name
sasl.mechanism.inter.broker.protocol=GSSAPI ssl.client.auth=none
ssl.endpoint.identification.algorithm=https ssl.keymanager.algorithm=SunX509 ssl.keystore.location
ssl.keystore.type=JKS ssl.protocol=TLSv1.3 ssl.provider ssl.secure.random.implementation
ssl.trustmanager.algorithm=PKIX ssl.truststore.location ssl.truststore.type=JKS
""",
    (_T.INT, False): """
add.partitions.to.txn.retry.backoff.max.ms=100 add.partitions.to.txn.retry.backoff.ms=20
alter.log.dirs.replication.quota.window.num=11
alter.log.dirs.replication.quota.window.size.seconds=1 broker.heartbeat.interval.ms=2000
broker.id=-1 broker.session.timeout.ms=9000 connection.failed.authentication.delay.ms=100
controller.quorum.append.linger.ms=25 controller.quorum.election.backoff.max.ms=1000
controller.quorum.election.timeout.ms=1000 controller.quorum.fetch.max.bytes=1048576
controller.quorum.fetch.snapshot.max.bytes=1048576 controller.quorum.fetch.timeout.ms=2000
controller.quorum.request.timeout.ms=2000 controller.quorum.retry.backoff.ms=20
controller.quota.window.num=11 controller.quota.window.size.seconds=1
controller.socket.timeout.ms=30000 default.replication.factor=1
delete.records.purgatory.purge.interval.requests=1 fetch.max.bytes=57671680
fetch.purgatory.purge.interval.requests=1000 group.consumer.heartbeat.interval.ms=5000
group.consumer.max.assignment.interval.ms=15000 group.consumer.max.heartbeat.interval.ms=15000
group.consumer.max.session.timeout.ms=60000 group.consumer.max.size=2147483647
group.consumer.min.assignment.interval.ms=0 group.consumer.min.heartbeat.interval.ms=5000
group.consumer.min.session.timeout.ms=45000 group.consumer.session.timeout.ms=45000
group.coordinator.append.linger.ms=-1 group.coordinator.background.threads=2
group.coordinator.threads=4 group.initial.rebalance.delay.ms=3000
group.max.session.timeout.ms=1800000 group.max.size=2147483647 group.min.session.timeout.ms=6000
group.share.delivery.count.limit=5 group.share.heartbeat.interval.ms=5000
group.share.max.assignment.interval.ms=15000 group.share.max.delivery.count.limit=10
group.share.max.heartbeat.interval.ms=15000 group.share.max.partition.max.record.locks=4000
group.share.max.record.lock.duration.ms=60000 group.share.max.session.timeout.ms=60000
group.share.max.share.sessions=2000 group.share.max.size=200
group.share.min.assignment.interval.ms=0 group.share.min.delivery.count.limit=2
group.share.min.heartbeat.interval.ms=5000 group.share.min.partition.max.record.locks=100
group.share.min.record.lock.duration.ms=15000 group.share.min.session.timeout.ms=45000
group.share.partition.max.record.locks=2000 group.share.record.lock.duration.ms=30000
group.share.session.timeout.ms=45000 group.streams.heartbeat.interval.ms=5000
group.streams.initial.rebalance.delay.ms=3000 group.streams.max.assignment.interval.ms=15000
group.streams.max.heartbeat.interval.ms=15000 group.streams.max.session.timeout.ms=60000
group.streams.max.size=2147483647 group.streams.max.standby.replicas=2
group.streams.min.assignment.interval.ms=0 group.streams.min.heartbeat.interval.ms=5000
group.streams.min.session.timeout.ms=45000 group.streams.num.standby.replicas=0
group.streams.session.timeout.ms=45000 initial.broker.registration.timeout.ms=60000
kafka.metrics.polling.interval.secs=10 log.flush.offset.checkpoint.interval.ms=60000
log.flush.start.offset.checkpoint.interval.ms=60000 log.retention.hours=168 log.retention.minutes
log.roll.hours=168 log.roll.jitter.hours=0 max.incremental.fetch.session.cache.slots=1000
max.request.partition.size.limit=2000 metadata.log.segment.bytes=1073741824
metadata.max.idle.interval.ms=500 metrics.num.samples=2 node.id num.partitions=1
num.replica.alter.log.dirs.threads offset.metadata.max.bytes=4096 offsets.commit.timeout.ms=5000
offsets.load.buffer.size=5242880 offsets.retention.minutes=10080 offsets.topic.compression.codec=0
offsets.topic.num.partitions=50 offsets.topic.segment.bytes=104857600
producer.purgatory.purge.interval.requests=1000 queued.max.requests=500 quota.window.num=11
quota.window.size.seconds=1 remote.log.manager.copy.quota.window.num=11
remote.log.manager.copy.quota.window.size.seconds=1 remote.log.manager.fetch.quota.window.num=11
remote.log.manager.fetch.quota.window.size.seconds=1 remote.log.manager.thread.pool.size=2
remote.log.metadata.custom.metadata.max.bytes=128 remote.log.reader.max.pending.tasks=100
replica.fetch.backoff.ms=1000 replica.fetch.max.bytes=1048576 replica.fetch.min.bytes=1
replica.fetch.response.max.bytes=10485760 replica.fetch.wait.max.ms=500
replica.socket.receive.buffer.bytes=65536 replica.socket.timeout.ms=30000
replication.quota.window.num=11 replication.quota.window.size.seconds=1 request.timeout.ms=30000
sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
sasl.oauthbearer.assertion.claim.exp.seconds=300 sasl.oauthbearer.assertion.claim.nbf.seconds=60
sasl.oauthbearer.clock.skew.seconds=30 sasl.server.max.receive.size=524288
share.coordinator.append.linger.ms=-1 share.coordinator.load.buffer.size=5242880
share.coordinator.snapshot.update.records.per.snapshot=500
share.coordinator.state.topic.compression.codec=0 share.coordinator.state.topic.num.partitions=50
share.coordinator.state.topic.segment.bytes=104857600 share.coordinator.threads=1
share.coordinator.write.timeout.ms=5000 share.fetch.purgatory.purge.interval.requests=1000
socket.listen.backlog.size=50 socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600 socket.send.buffer.bytes=102400 telemetry.max.bytes=1048576
transaction.abort.timed.out.transaction.cleanup.interval.ms=10000
transaction.max.timeout.ms=900000
transaction.remove.expired.transaction.cleanup.interval.ms=3600000
transaction.state.log.load.buffer.size=5242880 transaction.state.log.min.isr=2
transaction.state.log.num.partitions=50 transaction.state.log.segment.bytes=104857600
transactional.id.expiration.ms=604800000
""",
    (_T.INT, True): """
background.threads=10 compression.gzip.level=-1 compression.lz4.level=9 compression.zstd.level=3
group.consumer.assignment.interval.ms=1000 group.coordinator.cached.buffer.max.bytes=1048588
group.share.assignment.interval.ms=1000 group.streams.assignment.interval.ms=1000
log.cleaner.io.buffer.size=524288 log.cleaner.threads=1 log.index.interval.bytes=4096
log.index.size.max.bytes=10485760 log.segment.bytes=1073741824
max.connection.creation.rate=2147483647 max.connections.per.ip=2147483647
max.connections=2147483647 max.decompressed.message.bytes=2147483639 message.max.bytes=1048588
min.insync.replicas=1 num.io.threads=8 num.network.threads=3 num.recovery.threads.per.data.dir=2
num.replica.fetchers=1 producer.id.expiration.ms=86400000 remote.fetch.max.wait.ms=500
remote.log.manager.copier.thread.pool.size=10 remote.log.manager.expiration.thread.pool.size=10
remote.log.manager.follower.thread.pool.size=2 remote.log.reader.threads=10
share.coordinator.cached.buffer.max.bytes=1048588
""",
    (_T.SHORT, False): """
offsets.topic.replication.factor=3 share.coordinator.state.topic.min.isr=2
share.coordinator.state.topic.replication.factor=3 transaction.state.log.replication.factor=3
""",
    (_T.SHORT, True): """
sasl.login.refresh.buffer.seconds=300 sasl.login.refresh.min.period.seconds=60
""",
    (_T.LONG, False): """
connections.max.idle.ms=600000 connections.max.reauth.ms=0
delegation.token.expiry.check.interval.ms=3600000 delegation.token.expiry.time.ms=86400000
delegation.token.max.lifetime.ms=604800000 leader.imbalance.check.interval.seconds=300
log.dir.failure.timeout.ms=30000 log.flush.scheduler.interval.ms=9223372036854775807
log.initial.task.delay.ms=30000 log.retention.check.interval.ms=300000
metadata.log.max.record.bytes.between.snapshots=20971520
metadata.log.max.snapshot.interval.ms=3600000 metadata.log.segment.ms=604800000
metadata.max.retention.bytes=104857600 metadata.max.retention.ms=604800000
metrics.sample.window.ms=30000 offsets.retention.check.interval.ms=600000
queued.max.request.bytes=-1 remote.log.manager.task.interval.ms=30000
replica.high.watermark.checkpoint.interval.ms=5000 replica.lag.time.max.ms=30000
sasl.login.retry.backoff.max.ms=10000 sasl.login.retry.backoff.ms=100
sasl.oauthbearer.jwks.endpoint.refresh.ms=3600000
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms=10000
sasl.oauthbearer.jwks.endpoint.retry.backoff.ms=100 socket.connection.setup.timeout.max.ms=30000
socket.connection.setup.timeout.ms=10000
""",
    (_T.LONG, True): """
log.cleaner.backoff.ms=15000 log.cleaner.dedupe.buffer.size=134217728
log.cleaner.delete.retention.ms=86400000 log.cleaner.max.compaction.lag.ms=9223372036854775807
log.cleaner.min.compaction.lag.ms=0 log.flush.interval.messages=9223372036854775807
log.flush.interval.ms log.local.retention.bytes=-2 log.local.retention.ms=-2
log.message.timestamp.after.max.ms=3600000 log.message.timestamp.before.max.ms=9223372036854775807
log.remote.copy.lag.bytes=-1 log.remote.copy.lag.ms=0 log.retention.bytes=-1 log.retention.ms
log.roll.jitter.ms log.roll.ms log.segment.delete.delay.ms=60000
remote.list.offsets.request.timeout.ms=30000
remote.log.index.file.cache.total.size.bytes=1073741824
remote.log.manager.copy.max.bytes.per.second=9223372036854775807
remote.log.manager.fetch.max.bytes.per.second=9223372036854775807
sasl.kerberos.min.time.before.relogin=60000
""",
    (_T.DOUBLE, True): """
log.cleaner.io.buffer.load.factor=0.9 log.cleaner.io.max.bytes.per.second=1.7976931348623157E308
log.cleaner.min.cleanable.ratio=0.5 sasl.kerberos.ticket.renew.jitter=0.05
sasl.kerberos.ticket.renew.window.factor=0.8 sasl.login.refresh.window.factor=0.8
sasl.login.refresh.window.jitter=0.05
""",
    (_T.LIST, False): """
advertised.listeners controller.listener.names controller.quorum.bootstrap.servers=
controller.quorum.voters= early.start.listeners group.consumer.assignors=uniform,range
group.coordinator.rebalance.protocols=classic,consumer,streams group.share.assignors=simple
group.streams.assignors=sticky group.streams.rack.aware.assignment.tags= kafka.metrics.reporters=
log.dir=/tmp/kafka-logs log.dirs process.roles sasl.oauthbearer.expected.audience=
""",
    (_T.LIST, True): """
config.providers= cordoned.log.dirs= listeners=PLAINTEXT://:9092 log.cleanup.policy=delete
metric.reporters=org.apache.kafka.common.metrics.JmxReporter sasl.enabled.mechanisms=GSSAPI
sasl.kerberos.principal.to.local.rules=DEFAULT ssl.cipher.suites=
ssl.enabled.protocols=TLSv1.2,TLSv1.3
""",
    (_T.CLASS, False): """
alter.config.policy.class.name client.quota.callback.class create.topic.policy.class.name
group.streams.topology.description.plugin.class sasl.client.callback.handler.class
sasl.login.callback.handler.class sasl.login.class
sasl.oauthbearer.jwt.retriever.class=org.apache.kafka.common.security.oauthbearer\
.DefaultJwtRetriever
sasl.oauthbearer.jwt.validator.class=org.apache.kafka.common.security.oauthbearer\
.DefaultJwtValidator
sasl.server.callback.handler.class
""",
    (_T.CLASS, True): """
principal.builder.class=org.apache.kafka.common.security.authenticator\
.DefaultKafkaPrincipalBuilder
ssl.engine.factory.class
""",
    (_T.PASSWORD, False): """
delegation.token.secret.key sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.client.credentials.client.secret
""",
    (_T.PASSWORD, True): """
sasl.jaas.config ssl.key.password ssl.keystore.certificate.chain ssl.keystore.key
ssl.keystore.password ssl.truststore.certificates ssl.truststore.password
""",
}

# Topic settings whose default is a broker setting, with its name if it differs.
_TOPIC_BY_BROKER = """
cleanup.policy=log.cleanup.policy compression.gzip.level
compression.lz4.level compression.type
compression.zstd.level delete.retention.ms=log.cleaner.delete.retention.ms
file.delete.delay.ms=log.segment.delete.delay.ms flush.messages=log.flush.interval.messages
flush.ms=log.flush.interval.ms index.interval.bytes=log.index.interval.bytes
local.retention.bytes=log.local.retention.bytes local.retention.ms=log.local.retention.ms
max.compaction.lag.ms=log.cleaner.max.compaction.lag.ms
max.decompressed.message.bytes max.message.bytes=message.max.bytes
message.timestamp.after.max.ms=log.message.timestamp.after.max.ms
message.timestamp.before.max.ms=log.message.timestamp.before.max.ms
message.timestamp.type=log.message.timestamp.type
min.cleanable.dirty.ratio=log.cleaner.min.cleanable.ratio
min.compaction.lag.ms=log.cleaner.min.compaction.lag.ms min.insync.replicas
preallocate=log.preallocate remote.copy.lag.bytes=log.remote.copy.lag.bytes
remote.copy.lag.ms=log.remote.copy.lag.ms retention.bytes=log.retention.bytes
retention.ms=log.retention.ms segment.bytes=log.segment.bytes
segment.index.bytes=log.index.size.max.bytes segment.jitter.ms=log.roll.jitter.ms
segment.ms=log.roll.ms unclean.leader.election.enable
"""

# All other topic settings, by type.
_TOPIC = {
    _T.BOOLEAN: """
errors.deadletterqueue.group.enable=false remote.log.copy.disable=false
remote.log.delete.on.disable=false remote.storage.enable=false
""",
    _T.LIST: """
follower.replication.throttled.replicas= leader.replication.throttled.replicas=
""",
}

# Group settings whose default is a broker setting, named ``group.`` plus this name.
_GROUP_BY_BROKER = """
consumer.assignment.interval.ms consumer.heartbeat.interval.ms consumer.session.timeout.ms
share.assignment.interval.ms share.delivery.count.limit share.heartbeat.interval.ms
share.partition.max.record.locks share.record.lock.duration.ms share.session.timeout.ms
streams.assignment.interval.ms streams.heartbeat.interval.ms streams.initial.rebalance.delay.ms
streams.num.standby.replicas streams.rack.aware.assignment.tags streams.session.timeout.ms
"""

# All other group settings, by type.
_GROUP = {
    _T.BOOLEAN: """
errors.deadletterqueue.copy.record.enable=false share.renew.acknowledge.enable=true
""",
    _T.STRING: """
errors.deadletterqueue.topic.name= share.auto.offset.reset=latest
share.isolation.level=read_uncommitted
""",
}

_CLIENT_METRICS = {
    _T.INT: """
interval.ms=300000
""",
    _T.LIST: """
match= metrics=
""",
}


def _defaults(text: str) -> Iterator[tuple[str, str | None]]:
    for each in text.split():
        name, equals, default = each.partition("=")
        yield name, default if equals else None


def _definitions(by_type: Mapping[SettingType, str]) -> dict[str, Definition]:
    return {
        name: Definition(type, default)
        for type, text in by_type.items()
        for name, default in _defaults(text)
    }


def _of_broker(name: str) -> Definition:
    return Definition(BROKER_SETTINGS[name].type, broker_name=name)


BROKER_SETTINGS: Mapping[str, Definition] = {
    name: Definition(type, default, is_dynamic=is_dynamic)
    for (type, is_dynamic), text in _BROKER.items()
    for name, default in _defaults(text)
}
TOPIC_SETTINGS: Mapping[str, Definition] = {
    **{name: _of_broker(broker_name or name) for name, broker_name in _defaults(_TOPIC_BY_BROKER)},
    **_definitions(_TOPIC),
}
GROUP_SETTINGS: Mapping[str, Definition] = {
    **{name: _of_broker(f"group.{name}") for name in _GROUP_BY_BROKER.split()},
    "streams.assignor.name": Definition(_T.STRING, broker_name="group.streams.assignors"),
    **_definitions(_GROUP),
}
CLIENT_METRICS_SETTINGS: Mapping[str, Definition] = _definitions(_CLIENT_METRICS)
