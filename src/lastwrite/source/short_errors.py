"""Errors of the source without the frames of this package: Spark shows a worker's whole traceback.

An error of ours says where the problem is and what to do, so its frames tell the user nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from lastwrite.decoding.options import SPARK_NAMES, in_words_of
from lastwrite.errors import BadValue, LogError

P = ParamSpec("P")
T = TypeVar("T")


def _in_its_words(error: LogError) -> LogError:
    return in_words_of(error, SPARK_NAMES) if isinstance(error, BadValue) else error


def with_short_errors(method: Callable[P, T]) -> Callable[P, T]:
    """The method, whose errors have no frames below it and no cause."""

    @functools.wraps(method)
    def short(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except LogError as error:
            raise _in_its_words(error).with_traceback(None) from None

    return short


def rows_with_short_errors(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """The same of a method that yields."""

    @functools.wraps(method)
    def short(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except LogError as error:
            raise _in_its_words(error).with_traceback(None) from None

    return short
