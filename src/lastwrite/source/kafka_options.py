"""Check for options that are invalid in Spark's Kafka source.

The error messages are the same, so a job behaves the same with either source.

Source: Spark 4.1 ``KafkaSourceProvider.validateGeneralOptions`` and ``validateStreamOptions``.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastwrite.errors import InvalidConfig

_MEANS = "use DataFrame operations to explicitly deserialize the {}"
_REFUSED = {
    "kafka.auto.offset.reset": (
        "Kafka option 'auto.offset.reset' is not supported",
        "set the source option 'startingOffsets' to 'earliest' or 'latest' to specify where to "
        "start",
    ),
    "kafka.key.deserializer": (
        "Kafka option 'key.deserializer' is not supported as keys are deserialized as byte arrays "
        "with ByteArrayDeserializer",
        _MEANS.format("keys") + ", or give keyFormat",
    ),
    "kafka.value.deserializer": (
        "Kafka option 'value.deserializer' is not supported as values are deserialized as byte "
        "arrays with ByteArrayDeserializer",
        _MEANS.format("values") + ", or give valueFormat",
    ),
    "kafka.enable.auto.commit": (
        "Kafka option 'enable.auto.commit' is not supported",
        "leave out the option: a stream keeps its offsets in its checkpoint",
    ),
    "kafka.interceptor.classes": (
        "Kafka option 'interceptor.classes' is not supported",
        "leave out the option, and transform the rows with DataFrame operations",
    ),
}
_BLANK = {
    "subscribe": "No topics to subscribe to as specified value for option 'subscribe' is",
    "subscribepattern": (
        "Pattern to subscribe is empty as specified value for option 'subscribePattern' is"
    ),
}
_ENDINGS = {
    "endingoffsets": "ending offset not valid in streaming queries",
    "endingoffsetsbytimestamp": "ending offset not valid in streaming queries",
    "endingtimestamp": "ending timestamp not valid in streaming queries",
}


def reject_as_kafka_source(options: Mapping[str, str], *, is_stream: bool) -> None:
    """Raise an error for options that are invalid in Spark's Kafka source.

    The names of the given options must be in lower case.

    Raises:
        InvalidConfig: an option is invalid in the Kafka source.
    """
    for name, (problem, remedy) in _REFUSED.items():
        if name in options:
            raise InvalidConfig(problem, remedy=remedy)
    for name, problem in _BLANK.items():
        text = options.get(name)
        if text is not None and not text.replace("," if name == "subscribe" else "", "").strip():
            raise InvalidConfig(
                f"{problem} '{text}'", remedy="name a topic, or leave out the option"
            )
    if "assign" in options and not options["assign"].strip().startswith("{"):
        raise InvalidConfig(
            "No topicpartitions to assign as specified value for option 'assign' is "
            f"'{options['assign']}'",
            remedy='give JSON such as {"topic":[0,1]}',
        )
    for name, problem in _ENDINGS.items():
        if is_stream and name in options:
            raise InvalidConfig(problem, remedy="leave out the option, or use a batch query")
