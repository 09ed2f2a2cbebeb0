"""Store the machine code of kernels, and call it without Numba.

Numba's own cache requires Numba to be loaded, but the compiled code does not. A kernel's arguments
are numbers and arrays, and its results are numbers. A kernel calls only other kernels, which are
compiled into its code. The code is therefore a few kilobytes, which LLVM's loader loads in a
millisecond.

An array is passed in Numba's form: reference counter (null, because the caller keeps the array
alive), owner, number of items, item size, data address, shape and strides. A short function that
reads these from a NumPy array is compiled together with the kernel.

Numba itself runs all other calls: kernels that allocate, arrays that are not contiguous, keyword
arguments. If a kernel fails, Numba runs it again and raises the exception.
"""

from __future__ import annotations

import ctypes
import hashlib
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite
import numpy as np
from llvmlite import binding

from lastwrite.encoding.kernel import Kernel, making
from lastwrite.encoding.kernel_cache import (
    code_files,
    is_in_numbas_cache,
    load_code,
    maker,
    may_keep_code,
    only_compiler,
    store_code,
)

# NumPy's array flags (C-contiguous, aligned, writable), and byte positions of fields in NumPy's
# array object.
_CONTIGUOUS, _LAYOUT = 0x1, 0x1 | 0x100 | 0x400
_DATA_AT, _SHAPE_AT, _STRIDES_AT = 16, 32, 40
_LEAST, _END = -(1 << 63), 1 << 63
_SCALARS: dict[Any, str] = {
    bool: "?",
    float: "d",
    np.bool_: "?",
    np.float64: "d",
    np.int64: "q",
    np.uint64: "Q",
    np.int32: "i",
    np.uint32: "I",
    np.uint8: "B",
}
_C_TYPES: dict[Any, Any] = {
    "?": ctypes.c_bool,
    "d": ctypes.c_double,
    "q": ctypes.c_int64,
    "Q": ctypes.c_uint64,
    "i": ctypes.c_int32,
    "I": ctypes.c_uint32,
    "B": ctypes.c_uint8,
}
# Numba's names of result types, and their formats for ``struct``
_RESULTS = {"int64": "q", "uint64": "Q", "float64": "d", "none": ""}
_SINGLE_RESULTS = {**_RESULTS, "bool": "?", "int32": "i", "uint32": "I", "uint8": "B"}
# The external symbols that a kernel's code may use. The first one frees an array. It is never
# called, because references to a kernel's arrays are not counted.
_NEVER_CALLED = "NRT_MemInfo_call_dtor"
_CALLED = {_NEVER_CALLED, "memcpy", "memmove", "memset"}


class _NotCached(Exception):
    """Raised if a call is not possible without Numba, which then runs the call."""


def is_stored(kernel: Kernel) -> bool:
    """Whether this installation has stored machine code of the kernel for this processor.

    The code may be for any argument types.
    """
    if not may_keep_code():
        return is_in_numbas_cache(kernel)
    files = code_files(f"{kernel.function.__module__}:{kernel.function.__qualname__}")
    return any(_parted(file.read_bytes()) is not None for file in files)


class CodeOf:
    """Calls a kernel's machine code, which differs by the argument types."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._found: dict[Any, Callable[[tuple[Any, ...]], Any]] = {}
        self._usual: Callable[..., Any] = _not_these

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if named:
            return self._kernel.for_numba(*arguments, **named)
        found = self._usual(*arguments)
        if found is not NotImplemented:
            return found
        try:
            arguments = self._whole(arguments)
            kinds = tuple(map(_kind, arguments))
            code = self._found.get(kinds)
            if code is None:
                # one thread at a time, because the loader accepts each symbol only once
                with making:
                    code = self._found.get(kinds) or self._code_or_numba(arguments, kinds)
                    self._found[kinds] = code
                    if self._usual is _not_these and isinstance(code, _Code):
                        self._usual = code.usual(kinds)
            return code(arguments)
        except _NotCached:
            return self._kernel.for_numba(*arguments)

    def _whole(self, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a call, completed with defaults.

        Raises:
            _NotCached: there are too few or too many arguments. Numba then raises the error.
        """
        function = self._kernel.function
        missing = function.__code__.co_argcount - len(arguments)
        defaults = function.__defaults__ or ()
        if not 0 <= missing <= len(defaults):
            raise _NotCached
        return arguments + defaults[len(defaults) - missing :] if missing else arguments

    def _code_or_numba(
        self, arguments: tuple[Any, ...], kinds: tuple[Any, ...]
    ) -> Callable[[tuple[Any, ...]], Any]:
        try:
            return self._code(arguments, kinds)
        except _NotCached:  # remember the failure, because another attempt would take milliseconds
            return lambda arguments: self._kernel.for_numba(*arguments)

    def _code(self, arguments: tuple[Any, ...], kinds: tuple[Any, ...]) -> _Code:
        """The machine code for these argument types, loaded or else compiled and stored."""
        function = self._kernel.function
        module = function.__module__
        digest = hashlib.blake2b(repr(kinds).encode(), digest_size=8).hexdigest()
        name = f"{function.__qualname__}-{digest}"
        parted = _parted(load_code(module, name))
        if parted is None:
            with only_compiler(module, name):
                parted = _parted(load_code(module, name))
                if parted is None:
                    parted = _compiled(self._kernel, arguments, kinds, f"{module}.{name}")
                    result, machine_code = parted
                    head = f"{_proof(result, machine_code)} {result}".encode()
                    store_code(module, name, head + b"\n" + machine_code)
        result, machine_code = parted
        return _Code(f"{module}.{name}", machine_code, kinds, result)


def _parted(kept: bytes) -> tuple[str, bytes] | None:
    """Split a stored file into the kernel's result type and its machine code.

    None means that the file is incomplete, or was written by another installation.
    """
    head, _, machine_code = kept.partition(b"\n")
    proof, _, result = head.decode("latin-1").partition(" ")
    return (result, machine_code) if proof == _proof(result, machine_code) else None


def _not_these(*_: Any) -> Any:
    return NotImplemented


class _Code:
    """Machine code in memory that can be called."""

    def __init__(self, symbol: str, machine_code: bytes, kinds: Any, result: str) -> None:
        loader = _loader()
        loader.add_object_file(binding.ObjectFileRef.from_data(machine_code))
        loader.finalize_object()
        places = (_C_TYPES.get(kind, ctypes.py_object) for kind in _flat(kinds))
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *places)
        self._call = kind(loader.get_function_address(symbol))
        self._result = struct.Struct(result.removeprefix("("))
        self._is_tuple = result.startswith("(")
        self._room = ctypes.c_char * max(self._result.size, 8)

    def __call__(self, arguments: tuple[Any, ...]) -> Any:
        """Call the machine code with these arguments, and return its result.

        Raises:
            _NotCached: the kernel raises an exception.
        """
        room = self._room()
        if self._call(room, *_values(arguments)):
            raise _NotCached
        found = self._result.unpack_from(room)
        return found if self._is_tuple else found[0] if found else None

    def usual(self, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """A fast function for calls with arguments of exactly these types.

        It returns NotImplemented for any others.

        Its source is generated, because a loop that checks a dozen types takes as long as the call
        itself.
        """
        names = [f"a{number}" for number in range(len(kinds))]
        known: dict[str, Any] = {
            "array": np.ndarray,
            "call": self._call,
            "room_of": self._room,
            "unpack": self._result.unpack_from,
        }
        asked: list[str] = []
        given: list[str] = []
        for name, kind in zip(names, kinds, strict=True):
            parts = [(name, kind)]
            if isinstance(kind, tuple) and not _is_array(kind):
                asked.append(f"type({name}) is tuple and len({name}) == {len(kind)}")
                parts = [(f"{name}[{n}]", part) for n, part in enumerate(kind)]
            for place, part in parts:
                if part == "q":
                    asked.append(f"type({place}) is int and {_LEAST} <= {place} < {_END}")
                elif part == "?":
                    asked.append(f"type({place}) is bool")
                elif _is_array(part):
                    dtype, axes, layout = part
                    known[f"type{len(given)}"] = dtype
                    asked.append(
                        f"type({place}) is array and {place}.dtype is type{len(given)} "
                        f"and {place}.ndim == {axes} and {place}.flags.num & {_LAYOUT} == {layout}"
                    )
                else:
                    return _not_these
                given.append(place)
        found = "found" if self._is_tuple else "found[0] if found else None"
        lines = [
            f"def usual({''.join(f'{name}=None, ' for name in names)}*more):",
            f" if more or not ({' and '.join(asked) or 'True'}): return NotImplemented",
            " room = room_of()",
            f" if call({', '.join(['room', *given])}): return NotImplemented",
            " found = unpack(room)",
            f" return {found}",
        ]
        exec("\n".join(lines), known)
        usual: Callable[..., Any] = known["usual"]
        return usual


def _kind(value: Any) -> Any:
    """The type of an argument, with the distinctions that Numba makes.

    Raises:
        _NotCached: only Numba supports the type.
    """
    kind = type(value)
    if kind is np.ndarray:
        layout = value.flags.num & _LAYOUT
        if layout & _CONTIGUOUS:
            return value.dtype, value.ndim, layout
    elif kind is int:
        if _LEAST <= value < _END:
            return "q"
    elif kind is tuple:
        return tuple(map(_kind, value))
    elif kind in _SCALARS:
        return _SCALARS[kind]
    raise _NotCached


def _is_array(kind: Any) -> bool:
    return isinstance(kind, tuple) and len(kind) == 3 and isinstance(kind[0], np.dtype)


def _flat(kinds: tuple[Any, ...]) -> list[Any]:
    """The argument types, with tuples flattened."""
    flat: list[Any] = []
    for kind in kinds:
        flat += [kind] if isinstance(kind, str) or _is_array(kind) else _flat(kind)
    return flat


def _values(arguments: tuple[Any, ...]) -> list[Any]:
    """The values of arguments for the C call, with tuples flattened."""
    flat: list[Any] = []
    for value in arguments:
        if type(value) is tuple:
            flat += _values(value)
        else:
            flat.append(value.item() if isinstance(value, np.generic) else value)
    return flat


def _proof(result: str, machine_code: bytes) -> str:
    """A digest of complete machine code that this installation compiled for this processor."""
    said = _maker() + result.encode() + b"\n" + machine_code
    return hashlib.blake2b(said, digest_size=16).hexdigest()


@cache
def _maker() -> bytes:
    features = binding.get_host_cpu_features().flatten()
    return f"{maker()} {llvmlite.__version__} {binding.get_host_cpu_name()} {features} ".encode()


@cache
def _loader() -> Any:
    """LLVM's loader, which loads machine code into this process."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    binding.add_symbol(_NEVER_CALLED, abort)
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    return binding.create_mcjit_compiler(binding.parse_assembly(""), machine)


# ---------------------------------------------------------------------- compiling


def _compiled(
    kernel: Kernel, arguments: tuple[Any, ...], kinds: tuple[Any, ...], symbol: str
) -> tuple[str, bytes]:
    """Compile the kernel. Returns its result type and its code, with entry point ``symbol``.

    Raises:
        _NotCached: the result is not only numbers, or the code calls functions of Numba.
    """
    from numba import typeof

    types = tuple(map(typeof, arguments))
    kernel.for_kernels.compile(types)
    made = kernel.for_kernels.overloads.get(types)
    if made is None:
        raise _NotCached
    result = _result_of(made.signature.return_type)
    name, library = made.fndesc.llvm_func_name, made.library
    module = binding.parse_bitcode(library._get_module_for_linking().as_bitcode())
    places = [str(each.type) for each in module.get_function(name).arguments]
    entry = binding.parse_assembly(_entry(symbol, name, places, _flat(kinds)))
    entry.triple, entry.data_layout = module.triple, module.data_layout
    module.link_in(entry)
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration:
            each.linkage = "external" if each.name == symbol else "internal"
    machine = library.codegen._tm
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    unused = binding.create_new_module_pass_manager()
    unused.add_global_dead_code_eliminate_pass()
    unused.run(module, builder)
    asked = {
        each.name for each in (*module.functions, *module.global_variables) if each.is_declaration
    }
    if any(not each.startswith("llvm.") for each in asked - _CALLED):
        raise _NotCached
    return result, machine.emit_object(module)


def _result_of(kind: Any) -> str:
    """The ``struct`` format of the kernel's result, with a leading "(" if it is a tuple.

    Raises:
        _NotCached: the result is not only numbers.
    """
    inner = getattr(kind, "types", None)
    try:
        if inner is None:
            return _SINGLE_RESULTS[str(kind)]
        return "(" + "".join(_RESULTS[str(each)] for each in inner)
    except KeyError:
        raise _NotCached from None


def _entry(symbol: str, name: str, places: list[str], kinds: list[Any]) -> str:
    """The LLVM source of a function that unpacks its arguments and calls the kernel ``name``.

    ``places`` are the LLVM types of the kernel's parameters. The first two are for the result and
    the exception.
    """
    rest = iter(places[2:])
    lines: list[str] = []
    taken, given = ["ptr %result"], ["ptr %result", "ptr %exception"]
    count = 0

    def value(text: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"%v{count} = {text}")
        return f"%v{count}"

    def loaded(kind: str, place: str, at: int) -> str:
        return value(f"load {kind}, ptr {value(f'getelementptr i8, ptr {place}, i64 {at}')}")

    for number, kind in enumerate(kinds):
        if isinstance(kind, str):
            place = next(rest)
            taken.append(f"{place} %a{number}")
            given.append(f"{place} %a{number}")
            continue
        dtype, dimensions, _ = kind
        array = f"%a{number}"
        taken.append(f"ptr {array}")
        data, shape, strides = (
            loaded("ptr", array, at) for at in (_DATA_AT, _SHAPE_AT, _STRIDES_AT)
        )
        lengths = [loaded("i64", shape, 8 * axis) for axis in range(dimensions)]
        steps = [loaded("i64", strides, 8 * axis) for axis in range(dimensions)]
        items = "1"
        for length in lengths:
            items = value(f"mul i64 {items}, {length}")
        for each in ("null", "null", items, str(dtype.itemsize), data, *lengths, *steps):
            given.append(f"{next(rest)} {each}")
    return "\n".join(
        [
            f'declare i32 @"{name}"({", ".join(places)})',
            f'define i32 @"{symbol}"({", ".join(taken)}) {{',
            "%exception = alloca ptr",
            *lines,
            f'%status = call i32 @"{name}"({", ".join(given)})',
            "ret i32 %status",
            "}",
        ]
    )
