"""Remove this package's frames from errors of the source.

Spark prints a worker's traceback. Lastwrite's errors contain the file and the remedy, so the frames
would not help the user.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from lastwrite.decoding.options import SPARK_NAMES, with_option_names
from lastwrite.errors import BadValue, CorruptLog, LogError

P = ParamSpec("P")
T = TypeVar("T")

_REST = (
    'to read the other partitions, name them in the option "assign", for example '
    '{"orders": [0, 2]}, instead of subscribing'
)


def _shorten(error: LogError) -> LogError:
    if isinstance(error, BadValue):
        return with_option_names(error, SPARK_NAMES)
    if isinstance(error, CorruptLog) and _REST not in str(error):
        error.remedy = f"{error.remedy}; {_REST}" if error.remedy else _REST
    return error


def with_short_errors(method: Callable[P, T]) -> Callable[P, T]:
    """Wrap a method so that its errors have no cause, and no frames of the calls that it makes."""

    @functools.wraps(method)
    def short(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except LogError as error:
            raise _shorten(error).with_traceback(None) from None

    return short


def rows_with_short_errors(method: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
    """Wrap a generator method so that its errors have no cause, and no frames of its calls."""

    @functools.wraps(method)
    def short(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        try:
            yield from method(*args, **kwargs)
        except LogError as error:
            raise _shorten(error).with_traceback(None) from None

    return short
