"""Tests of JSON structs that several threads decode for the first time."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from lastwrite.encoding.json_structs import convert_struct, decode_struct

# With plain ``msgspec.json.decode`` this program always ends with a segmentation fault.
MANY_THREADS = """
import sys, threading, types
from lastwrite.encoding.json_structs import convert_struct, decode_struct

SOURCE = '''
from __future__ import annotations
import msgspec
class Inner(msgspec.Struct, frozen=True):
    a: int
    b: tuple[int, ...]
class Outer(msgspec.Struct, frozen=True, kw_only=True):
    one: tuple[Inner, ...]
    two: dict[str, Inner]
    three: Inner | None = None
'''
TEXT = b'{"one":[{"a":1,"b":[1,2]}],"two":{"x":{"a":2,"b":[]}}}'
FIELDS = {"one": [{"a": 1, "b": [1, 2]}], "two": {"x": {"a": 2, "b": []}}}

sys.setswitchinterval(1e-6)
right = []
for n in range(200):
    module = sys.modules[f"made{n}"] = types.ModuleType(f"made{n}")
    exec(SOURCE, module.__dict__)
    outer, gate = module.Outer, threading.Barrier(6)

    def decode(which):
        gate.wait()
        found = convert_struct(FIELDS, outer) if which % 3 == 0 else decode_struct(TEXT, outer)
        right.append(found.one[0].b == (1, 2) and found.two["x"].a == 2)

    threads = [threading.Thread(target=decode, args=(which,)) for which in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(right), all(right))
"""


def test_many_threads_may_decode_first() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY_THREADS], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["1200", "True"], "")


class Pair(msgspec.Struct):
    a: int
    b: str = ""


def test_json_of_another_shape_is_refused() -> None:
    assert decode_struct(b'{"a":1}', Pair) == decode_struct('{"a":1}', Pair) == Pair(1)
    assert decode_struct(msgspec.Raw(b'{"a":1,"b":"x"}'), Pair) == Pair(1, "x")
    for text in (b"", b"{", b'{"a":"1"}', b"[]"):
        with pytest.raises(msgspec.MsgspecError):
            decode_struct(text, Pair)
    with pytest.raises(msgspec.ValidationError):
        convert_struct({"b": "x"}, Pair)
