"""Which of the partitions that lie at a path are asked for: by topic, named or by a shell pattern,
and by number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from lastwrite.errors import InvalidConfig, NotALog
from lastwrite.model.log import TopicPartition

Topics: TypeAlias = str | Sequence[str] | None  # names and shell patterns; None: every topic
NamesOf: TypeAlias = Callable[[TopicPartition], Sequence[str]]

_MOST_NAMES = 5


def topic_of(name: TopicPartition) -> tuple[str, ...]:
    """The one name that a topic has in most systems."""
    return (name.topic,)


def is_asked(topic: Topics, names: Sequence[str]) -> bool:
    """Whether a topic of these names is named or matched; without a question every topic is."""
    return topic is None or any(_matches(text, names) for text in _texts(topic))


def is_named(topic: Topics, names: Sequence[str]) -> bool:
    """Whether one of the names was given: a topic that only a pattern matches was not named."""
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
    """The folders of what is asked for, in the order of ``found``.

    ``kind`` and ``unit``: what the system calls a topic and a partition, for errors.

    Raises:
        InvalidConfig: an empty list of topics.
        NotALog: a name or a pattern meets no topic, or none that it meets has the partition. Says
            what there is.
    """
    listed = list(found)
    known = {name: names_of(name) for name, _ in listed}
    for text in () if topic is None else _texts(topic):
        check_there(text, known.values(), path, kind)
    chosen = [each for each in listed if is_asked(topic, known[each[0]])]
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
    """See that a name or a pattern meets one of the topics, each of which has the names ``known``.

    Raises:
        NotALog: it meets none. Says which one may have been meant, else which there are.
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
    """
    Raises:
        InvalidConfig: an empty list, which a caller may have come by: it does not mean every topic.
    """
    texts = (topic,) if isinstance(topic, str) else topic
    if not texts:
        raise InvalidConfig(
            "an empty list of topics", remedy="give None for every topic, or names or patterns"
        )
    return texts


def _matches(text: str, names: Sequence[str]) -> bool:
    # ``*`` stands for no slash: it does not reach from a tenant into a topic's name.
    return any(
        text == name or (text.count("/") == name.count("/") and fnmatchcase(name, text))
        for name in names
    )


def _no_number(numbers: dict[str, list[int]], wanted: int, path: str, unit: str) -> NotALog:
    if len(numbers) == 1:
        ((topic, there),) = numbers.items()
        if not there:
            words, remedy = f"{topic} has no {unit}s", f"leave out --{unit}"
        else:
            words, remedy = f"{topic} has no {unit} {wanted}", f"there are: {_ranges(there)}"
    else:
        words = f"no topic has a {unit} {wanted}"
        told = [f"{topic} has {_ranges(there) or 'none'}" for topic, there in numbers.items()]
        remedy = _some(told)
    return NotALog(words, path=path, remedy=remedy)


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3, 7``: so that a topic of a thousand partitions takes one line."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number <= parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return _some(f"{low}" if low == high else f"{low}-{high}" for low, high in parts)


def _some(texts: Iterable[str]) -> str:
    """The first few, and how many more."""
    every = list(texts)
    more = f" and {len(every) - _MOST_NAMES:,} more" if len(every) > _MOST_NAMES else ""
    return ", ".join(every[:_MOST_NAMES]) + more
