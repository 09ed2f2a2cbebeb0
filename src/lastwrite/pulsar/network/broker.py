"""Find the broker of a topic, read the topic's last message, and commit its compacted ledger.

A compactor is a consumer of the topic, on the exclusive subscription ``__compaction``. While it is
subscribed, no other compactor can run, including the broker's compactor. The commit is an
acknowledgement with the ledger's id as a property::

    with find_owner(["127.0.0.1:6650"], "persistent://public/default/orders") as broker:
        with broker.subscribe(topic) as held:
            held.acknowledge(Position(10, 5), ledger=42)

A broker never answers that it refused an acknowledgement. The topic's metadata show the result.

Source: Pulsar 4.2.4 ``CompactorSubscription``, ``ServerCnx``; docs/formats/pulsar-compaction.md,
"The commit" and "The last message id".
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lastwrite.errors import InvalidConfig, LogError, LogHeld, NotALog, RemoteFailed
from lastwrite.pulsar.format.compacted import MessageId
from lastwrite.pulsar.format.managed_ledger import LongProperty
from lastwrite.pulsar.format.names import COMPACTION_CURSOR, LEDGER_PROPERTY
from lastwrite.pulsar.format.position import Position
from lastwrite.pulsar.network.commands import (
    ACK_RECEIPT_VERSION,
    Ack,
    AuthData,
    AuthResponse,
    BaseCommand,
    CloseConsumer,
    Connect,
    LastMessageId,
    Lookup,
    LookupResponse,
    LookupType,
    Ping,
    ServerError,
    Subscribe,
    decode_command,
    encode_command,
)
from lastwrite.pulsar.network.identity import ANONYMOUS, PulsarCredentials
from lastwrite.pulsar.network.link import TIMEOUT_SECONDS, Link

_CLIENT = "lastwrite"
_SCHEME, _TLS_SCHEME = "pulsar://", "pulsar+ssl://"
_MOST_REDIRECTS = 20
_RETRY_SECONDS = 0.2


class BrokerUrl(NamedTuple):
    """The address of a broker, and whether it uses TLS."""

    address: str  # HOST:PORT
    has_tls: bool = False


class _NotReady(RemoteFailed):
    """Raised if no broker serves the topic at the moment. The lookup should be repeated."""


@dataclass(frozen=True, slots=True)
class LastMessage:
    """The last message of a topic, according to its broker."""

    position: Position  # the last entry that consumers can get; -1:-1 if there is none
    mark_delete: Position | None  # mark-delete position of this subscription


class Broker:
    """A connection to one broker, opened at once and kept alive by a thread.

    ``identity`` authenticates the client. ``proxied`` is the ``HOST:PORT`` of the broker behind a
    proxy at ``url``.

    Raises:
        RemoteFailed: no answer in time, an answer that is not a broker's, or access is refused.
    """

    def __init__(
        self,
        url: BrokerUrl | str,
        identity: PulsarCredentials = ANONYMOUS,
        timeout: float = TIMEOUT_SECONDS,
        proxied: str | None = None,
    ) -> None:
        self.url = parse_broker_url(url) if isinstance(url, str) else url
        self.address = self.url.address
        self._identity = identity
        self._timeout = timeout
        tls = identity.tls if self.url.has_tls else None
        self._link = Link(self.address, "broker", timeout, tls)
        self._changed = threading.Condition()
        self._answers: dict[int, BaseCommand] = {}
        self._waited: set[int] = set()
        self._lost: set[int] = set()  # consumers that the broker has closed
        self._error: RemoteFailed | None = None
        self._is_closed = False
        self._numbers = iter(range(1, 1 << 62))
        self._link.open("connecting")
        self._protocol = self._connect(proxied)
        self._thread = threading.Thread(
            target=self._listen, name=f"pulsar-{self.address}", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._is_closed = True
        self._link.shutdown()
        self._thread.join(self._timeout)
        self._link.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ requests

    def lookup(self, topic: str, authoritative: bool = False) -> LookupResponse:
        """Ask this broker which broker serves the topic. This may make the broker load the topic.

        Raises:
            RemoteFailed: no answer.
        """
        number = next(self._numbers)
        lookup = Lookup(topic=topic, request_id=number, authoritative=authoritative)
        doing = f"looking up the broker of {topic}"
        answer = self._request(number, BaseCommand(kind=23, lookup=lookup), doing)
        assert answer.lookup_response is not None
        return answer.lookup_response

    def subscribe(self, topic: str) -> Subscription:
        """Subscribe to ``__compaction``. A new subscription starts at the topic's first entry.

        Raises:
            LogHeld: another compaction of the topic has the subscription.
            NotALog: the topic does not exist.
            RemoteFailed: no answer, or a refusal.
        """
        return self._subscribed(
            topic,
            COMPACTION_CURSOR,
            consumer_name=f"{_CLIENT}-{secrets.token_hex(4)}",
            read_compacted=True,
            initial_position=1,
        )

    def temporary_subscription(self, topic: str) -> Subscription:
        """A temporary subscription, used only to request the topic's last message.

        Raises: as ``subscribe``.
        """
        latest = MessageId(ledger_id=(1 << 63) - 1, entry_id=(1 << 63) - 1)
        name = f"{_CLIENT}-{secrets.token_hex(8)}"
        return self._subscribed(topic, name, durable=False, start=latest)

    def _subscribed(self, topic: str, name: str, **how: Any) -> Subscription:
        number, consumer = next(self._numbers), next(self._numbers)
        subscribe = Subscribe(
            topic=topic, subscription=name, consumer_id=consumer, request_id=number, **how
        )
        doing = f"subscribing to {topic}"
        answer = self._request(number, BaseCommand(kind=4, subscribe=subscribe), doing)
        if answer.error is not None:
            raise self._rejected_error(doing, answer.error.error, answer.error.message)
        return Subscription(self, topic, consumer)

    # ------------------------------------------------------------------ connection

    def _connect(self, proxied: str | None) -> int:
        doing, method = "connecting", self._identity.login.method
        connect = Connect(
            client_version=_CLIENT,
            proxy_to_broker_url=proxied,
            auth_method_name=method,
            auth_data=None if method is None else self._proof(),
        )
        self._link.send([encode_command(BaseCommand(kind=2, connect=connect))], doing)
        try:
            while True:
                answer = self._received(self._link.receive(doing))
                if answer.error is not None:
                    raise self._rejected_error(doing, answer.error.error, answer.error.message)
                if answer.auth_challenge is not None:
                    self._authenticate()
                elif answer.connected is not None:
                    return answer.connected.protocol_version or 0
        except BaseException:
            self._link.close()
            raise

    def _listen(self) -> None:
        """Answer pings, deliver answers, and record closed consumers, until the connection ends."""
        try:
            while not self._is_closed:
                frame = self._link.receive("listening", seconds=1.0)
                if frame is None:
                    continue
                command = self._received(frame)
                if command.ping is not None or command.kind == 18:
                    pong = BaseCommand(kind=19, pong=Ping())
                    self._link.send([encode_command(pong)], "answering a ping")
                elif command.auth_challenge is not None:
                    self._authenticate()
                else:
                    self._hand_out(command)
        except RemoteFailed as error:
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _hand_out(self, command: BaseCommand) -> None:
        with self._changed:
            if command.close_consumer is not None:
                self._lost.add(command.close_consumer.consumer_id)
            for answer in (
                command.success,
                command.error,
                command.lookup_response,
                command.last_message_id_response,
                command.ack_response,
            ):
                if answer is not None and answer.request_id in self._waited:
                    self._answers[answer.request_id] = command
            self._changed.notify_all()

    def _request(self, number: int, command: BaseCommand, doing: str) -> BaseCommand:
        """The answer to the request with this number.

        Raises:
            RemoteFailed: no answer in time, or the connection is lost. The request may have been
                executed.
        """
        deadline = time.monotonic() + self._timeout
        with self._changed:
            self._raise_error(doing)
            self._waited.add(number)
        try:
            self._link.send([encode_command(command)], doing)
            with self._changed:
                while number not in self._answers:
                    self._raise_error(doing)
                    self._changed.wait(max(0.0, deadline - time.monotonic()))
                    if number not in self._answers and time.monotonic() >= deadline:
                        raise RemoteFailed(
                            f"{doing}: no answer from the broker within {self._timeout:g} s",
                            path=self.address,
                            remedy="check that the broker is running",
                        )
                return self._answers.pop(number)
        finally:
            with self._changed:
                self._waited.discard(number)

    def _raise_error(self, doing: str) -> None:
        if self._error is not None:
            words = f"{doing}: {self._error.problem}"
            raise RemoteFailed(words, path=self.address, remedy=self._error.remedy)

    def _received(self, frame: bytes | None) -> BaseCommand:
        assert frame is not None
        try:
            return decode_command(frame)
        except LogError as error:
            raise RemoteFailed(
                f"the answer is not a broker's: {error.problem}",
                path=self.address,
                remedy="check that this address is a broker's",
            ) from error

    def _authenticate(self) -> None:
        method = self._identity.login.method
        if method is None:
            raise self._rejected_error(
                "connecting", ServerError.AUTHENTICATION, "the broker requires authentication"
            )
        data = AuthData(auth_method_name=method, auth_data=self._proof())
        response = AuthResponse(client_version=_CLIENT, response=data)
        command = BaseCommand(kind=37, auth_response=response)
        self._link.send([encode_command(command)], "authenticating")

    def _proof(self) -> bytes:
        try:
            return self._identity.proof()
        except InvalidConfig as error:
            raise RemoteFailed(error.problem, path=error.path, remedy=error.remedy) from error

    def _rejected_error(self, doing: str, code: int | None, message: str | None) -> LogError:
        text = f"{doing}: {(message or 'no reason given').strip().splitlines()[0]}"
        if code == ServerError.CONSUMER_BUSY:
            remedy = (
                "wait until the other compaction of the topic has ended, then run the command again"
            )
            return LogHeld(text, path=self.address, remedy=remedy)
        if code == ServerError.TOPIC_NOT_FOUND:
            return NotALog(text, path=self.address, remedy="give a topic that exists")
        if code in (ServerError.AUTHENTICATION, ServerError.AUTHORIZATION):
            return RemoteFailed(
                text,
                path=self.address,
                remedy="set authParams, or brokerClientAuthenticationParameters, to token:… or "
                "file:///… of a role that may consume the topic; see docs/guide/pulsar-live.md",
            )
        is_early = code in (ServerError.SERVICE_NOT_READY, ServerError.TOO_MANY_REQUESTS)
        kind = _NotReady if is_early else RemoteFailed
        return kind(f"{text} (error {code})", path=self.address, remedy="see the broker's log")


class Subscription:
    """A subscription to a topic, from ``Broker.subscribe`` or ``Broker.temporary_subscription``."""

    def __init__(self, broker: Broker, topic: str, consumer: int) -> None:
        self.broker = broker
        self.topic = topic
        self._consumer = consumer

    @property
    def is_lost(self) -> bool:
        """Whether the broker closed the subscription, or the connection is lost.

        Another compaction may then have subscribed.
        """
        return self._consumer in self.broker._lost or self.broker._error is not None

    def last_message(self) -> LastMessage:
        """The last message of the topic.

        Undecided and aborted data and markers at the end are not messages.

        Raises:
            RemoteFailed: no answer, or a refusal.
        """
        number = next(self.broker._numbers)
        doing = f"reading the last message id of {self.topic}"
        question = LastMessageId(consumer_id=self._consumer, request_id=number)
        answer = self.broker._request(number, BaseCommand(kind=29, last_message_id=question), doing)
        if answer.error is not None:
            raise self.broker._rejected_error(doing, answer.error.error, answer.error.message)
        found = answer.last_message_id_response
        assert found is not None
        mark_delete = found.mark_delete
        return LastMessage(
            found.last.position, None if mark_delete is None else mark_delete.position
        )

    def acknowledge(self, horizon: Position, ledger: int) -> None:
        """Acknowledge that all entries up to ``horizon`` are compacted into ``ledger``.

        The broker then serves that ledger. A return means only that the broker has read the
        acknowledgement, not that it has accepted or stored it. Never acknowledge a ledger twice:
        the broker then deletes it.

        Raises:
            RemoteFailed: it is unknown whether the broker has read the acknowledgement.
        """
        number = next(self.broker._numbers)
        doing = f"acknowledging {self.topic} up to {horizon} with ledger {ledger}"
        ack = Ack(
            consumer_id=self._consumer,
            positions=(MessageId(ledger_id=horizon.ledger, entry_id=horizon.entry),),
            properties=(LongProperty(name=LEDGER_PROPERTY, value=ledger),),
            request_id=number,
        )
        if self.broker._protocol < ACK_RECEIPT_VERSION:
            self.broker._link.send([encode_command(BaseCommand(kind=10, ack=ack))], doing)
            # A broker reads in order, so the answer to the next request shows that it has read this
            # acknowledgement.
            return
        answer = self.broker._request(number, BaseCommand(kind=10, ack=ack), doing)
        response = answer.ack_response
        if response is not None and response.error is not None:
            raise self.broker._rejected_error(doing, response.error, response.message)

    def close(self) -> None:
        """End the subscription. The broker answers after it has read everything sent before."""
        if self.is_lost:
            return
        number = next(self.broker._numbers)
        close = CloseConsumer(consumer_id=self._consumer, request_id=number)
        command = BaseCommand(kind=16, close_consumer=close)
        self.broker._request(number, command, f"closing the subscription of {self.topic}")

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        # An error has no effect: the end of the connection also ends the subscription.
        with contextlib.suppress(RemoteFailed):
            self.close()


def find_owner(
    urls: Sequence[BrokerUrl | str],
    topic: str,
    identity: PulsarCredentials = ANONYMOUS,
    timeout: float = TIMEOUT_SECONDS,
) -> Broker:
    """A connection to the broker that serves ``topic``, found from any of ``urls``.

    Raises:
        RemoteFailed: no broker answers, or none serves the topic within the timeout.
        NotALog: the topic does not exist.
    """
    if not urls:
        remedy = "start a broker: only a broker can store the compaction horizon"
        raise RemoteFailed("no broker of the cluster is running", remedy=remedy)
    deadline = time.monotonic() + timeout
    failed = RemoteFailed("no broker answers")
    while time.monotonic() <= deadline:
        for url in urls:
            try:
                at = parse_broker_url(url) if isinstance(url, str) else url
                return _follow(at, topic, identity, timeout)
            except RemoteFailed as error:
                failed = error
        if not isinstance(failed, _NotReady):
            break
        time.sleep(_RETRY_SECONDS)
    raise failed


def _follow(service: BrokerUrl, topic: str, identity: PulsarCredentials, timeout: float) -> Broker:
    """Follow the lookup from the broker at ``service`` to the broker that serves the topic."""
    at, authoritative = service, False
    for _ in range(_MOST_REDIRECTS):
        broker = Broker(at, identity, timeout)
        try:
            answer = broker.lookup(topic, authoritative)
            if answer.response == LookupType.FAILED or answer.response is None:
                raise broker._rejected_error(
                    f"looking up the broker of {topic}", answer.error, answer.message
                )
            named = _named(answer, at, topic)
            if answer.response == LookupType.CONNECT and named == at:
                return broker
        except BaseException:
            broker.close()
            raise
        broker.close()
        if answer.response == LookupType.CONNECT:
            if answer.proxy_through_service_url:
                return Broker(service, identity, timeout, proxied=named.address)
            return Broker(named, identity, timeout)
        at, authoritative = named, bool(answer.authoritative)
    words = f"looking up the broker of {topic}: the brokers redirect to each other in a circle"
    raise RemoteFailed(words, path=service.address, remedy="run the command again")


def _named(answer: LookupResponse, asked: BrokerUrl, topic: str) -> BrokerUrl:
    """The broker in a lookup's answer.

    Its address has TLS if ``asked`` has TLS; otherwise an address without TLS is preferred.
    """
    if asked.has_tls and not answer.broker_url_tls:
        raise RemoteFailed(
            f"the broker of {topic} does not accept TLS",
            path=answer.broker_url or asked.address,
            remedy="set brokerServicePortTls on the brokers, or give "
            "brokerServiceUrl=pulsar://HOST:PORT",
        )
    named = (not asked.has_tls and answer.broker_url) or answer.broker_url_tls
    if not named:
        raise RemoteFailed(f"the broker of {topic} has no address", path=asked.address)
    return parse_broker_url(named)


def parse_broker_url(url: str) -> BrokerUrl:
    """Parse ``pulsar://HOST:PORT`` or ``pulsar+ssl://HOST:PORT``. The scheme is optional.

    Raises:
        InvalidConfig: another scheme.
    """
    has_tls = url.startswith(_TLS_SCHEME)
    address = url.removeprefix(_TLS_SCHEME if has_tls else _SCHEME)
    if "://" in address:
        remedy = "give pulsar://HOST:PORT or pulsar+ssl://HOST:PORT"
        raise InvalidConfig(f"{url!r} is not a supported broker address", remedy=remedy)
    return BrokerUrl(address.rstrip("/"), has_tls)


def parse_broker_urls(urls: str) -> Iterator[BrokerUrl]:
    """The brokers in ``pulsar://HOST:PORT,HOST:PORT``."""
    addresses, has_tls = parse_broker_url(urls.strip())
    for part in addresses.split(","):
        if part.strip():
            yield BrokerUrl(part.strip(), has_tls)
