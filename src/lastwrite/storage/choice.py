"""Selection of partitions by topic, as a name or a shell pattern, and by number."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition

# selected topics, by names and shell patterns; None means every topic
Topics: TypeAlias = str | Sequence[str] | None
NamesOf: TypeAlias = Callable[[TopicPartition], Sequence[str]]

_MOST_NAMES = 5


def topic_of(name: TopicPartition) -> tuple[str, ...]:
    """All names by which users may select the partition's topic.

    By default a topic has one name.
    """
    return (name.topic,)


def is_selected(topic: Topics, names: Sequence[str]) -> bool:
    """Whether a topic with these names is selected by name or pattern.

    ``topic`` None selects every topic.
    """
    return topic is None or any(_matches(text, names) for text in _texts(topic))


def is_named(topic: Topics, names: Sequence[str]) -> bool:
    """Whether the selection ``topic`` contains one of the topic's ``names``.

    A matching pattern does not count.
    """
    return topic is not None and any(text in names for text in _texts(topic))


def choose(
    found: Iterable[tuple[TopicPartition, str]],
    topic: Topics,
    partition: int | None,
    path: str,
    names_of: NamesOf = topic_of,
    kind: str = "topic",
    unit: str = "partition",
) -> list[str]:
    """The folders of the selected partitions, in the order of ``found``.

    ``kind`` and ``unit`` are the system's words for a topic and a partition, for error messages.

    Raises:
        InvalidConfig: the list of topics is empty.
        NotALog: a name or pattern matches no topic, or no matching topic has the partition. The
            message lists the existing topics or partitions.
    """
    listed = list(found)
    known = {name: names_of(name) for name, _ in listed}
    for text in () if topic is None else _texts(topic):
        check_there(text, known.values(), path, kind)
    chosen = [each for each in listed if is_selected(topic, known[each[0]])]
    if partition is not None:
        numbers: dict[str, list[int]] = {}
        for name, _ in chosen:
            there = numbers.setdefault(name.topic, [])
            if name.partition >= 0:
                there.append(name.partition)
        chosen = [each for each in chosen if each[0].partition == partition]
        if not chosen:
            raise _no_number(numbers, partition, path, unit)
    return [folder for _, folder in chosen]


def check_there(text: str, known: Iterable[Sequence[str]], path: str, kind: str = "topic") -> None:
    """Check that a name or pattern matches one of the existing topics, ``known``.

    Raises:
        NotALog: no topic matches. The message has the most similar name, or the existing names.
    """
    there = list(dict.fromkeys(map(tuple, known)))
    if any(_matches(text, names) for names in there):
        return
    alike = [name for names in there for name in names if name.count("/") == text.count("/")]
    nearest = difflib.get_close_matches(text, alike, 1)
    if nearest:
        remedy = f"did you mean {nearest[0]}?"
    else:
        remedy = f"there are: {_some(dict.fromkeys(names[0] for names in there))}"
    is_pattern = any(mark in text for mark in "*?[")
    words = f"no {kind} matches {text!r}" if is_pattern else f"no {kind} {text!r}"
    raise NotALog(words, path=path, remedy=remedy)


def _texts(topic: str | Sequence[str]) -> Sequence[str]:
    """The list of names and patterns that select topics.

    Raises:
        InvalidConfig: the list is empty. This may be a mistake, so it does not mean all topics.
    """
    texts = (topic,) if isinstance(topic, str) else topic
    if not texts:
        raise InvalidConfig(
            "the list of topics is empty", remedy="give names or patterns, or None for every topic"
        )
    return texts


def _matches(text: str, names: Sequence[str]) -> bool:
    # A pattern must have as many slashes as the name, so ``*`` never matches a slash. In Pulsar it
    # therefore does not extend from a tenant into a topic's name.
    return any(
        text == name or (text.count("/") == name.count("/") and fnmatchcase(name, text))
        for name in names
    )


def _no_number(numbers: dict[str, list[int]], needed: int, path: str, unit: str) -> NotALog:
    if len(numbers) == 1:
        ((topic, there),) = numbers.items()
        if not there:
            words, remedy = f"{topic} has no {unit}s", f"leave out --{unit}"
        else:
            words, remedy = (
                f"{topic} has no {unit} {needed}",
                f"there are: {_ranges(there)}",
            )
    else:
        words = f"no topic has a {unit} {needed}"
        told = [f"{topic} has {_ranges(there) or 'none'}" for topic, there in numbers.items()]
        remedy = _some(told)
    return NotALog(words, path=path, remedy=remedy)


def _ranges(numbers: Sequence[int]) -> str:
    """Number ranges such as ``0-3, 7``, so that a thousand partitions fit on a line."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number <= parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return _some(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def _some(texts: Iterable[str]) -> str:
    """The first five texts, and the number of further texts."""
    every = list(texts)
    more = f" and {len(every) - _MOST_NAMES:,} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(every[:_MOST_NAMES]) + more
