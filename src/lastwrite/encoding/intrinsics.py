"""Numba intrinsics for operations that are one instruction but that Python cannot express.

These are unaligned loads and stores, byte swaps, the 64 x 64 -> 128 bit product, block copies, the
CRC-32C instruction, folds for CRC-32, and calls of C functions. Byte-by-byte loops would need three
to five times as long (docs/decisions). No function checks bounds: the caller must.

Bytes are passed as an array or as its ``address``. Functions that are called for every record get
the address. For an array, Numba would count references at each call, with two locked instructions
that cost more than decoding the record. The caller keeps the array alive while its address is used.
"""
# mypy: disable-error-code="no-untyped-def, misc, no-untyped-call, untyped-decorator"

from __future__ import annotations

from functools import cache
from typing import Any

from lastwrite.encoding.kernel import LazyModule, intrinsic

binding = LazyModule("llvmlite.binding")
ir = LazyModule("llvmlite.ir")
types = LazyModule("numba.core.types")
cgutils = LazyModule("numba.core.cgutils")


def _pointer(
    context: Any, builder: Any, array_type: Any, array: Any, index: Any, width: int
) -> Any:
    if isinstance(array_type, types.Integer):
        return builder.inttoptr(builder.add(array, index), ir.IntType(width).as_pointer())
    data = context.make_array(array_type)(context, builder, array).data
    place = builder.gep(data, [index])
    return builder.bitcast(place, ir.IntType(width).as_pointer())


def _loader(width: int) -> Any:
    @intrinsic
    def load(typing_context, array, index):
        def codegen(context, builder, signature, args):
            place = _pointer(context, builder, signature.args[0], args[0], args[1], width)
            value = builder.load(place)
            value.align = 1
            return builder.zext(value, ir.IntType(64)) if width < 64 else value

        return types.uint64(array, types.int64), codegen

    return load


def _storer(width: int) -> Any:
    @intrinsic
    def store(typing_context, array, index, value):
        def codegen(context, builder, signature, args):
            place = _pointer(context, builder, signature.args[0], args[0], args[1], width)
            cut = builder.trunc(args[2], ir.IntType(width)) if width < 64 else args[2]
            builder.store(cut, place).align = 1
            return context.get_dummy_value()

        return types.none(array, types.int64, types.uint64), codegen

    return store


def _swapper(width: int) -> Any:
    @intrinsic
    def swap(typing_context, value):
        def codegen(context, builder, signature, args):
            narrow = ir.IntType(width)
            cut = builder.trunc(args[0], narrow) if width < 64 else args[0]
            turned = builder.bswap(cut)
            return builder.zext(turned, ir.IntType(64)) if width < 64 else turned

        return types.uint64(types.uint64), codegen

    return swap


load8 = _loader(8)  # takes bytes and a position, and returns a uint64
# takes bytes and a position, and returns a uint64 that was stored little-endian
load64 = _loader(64)
load32 = _loader(32)
load16 = _loader(16)
store8 = _storer(8)
store64 = _storer(64)  # takes bytes, a position and the uint64 to store
store32 = _storer(32)
store16 = _storer(16)
swap64 = _swapper(64)  # uint64 -> uint64
swap32 = _swapper(32)
swap16 = _swapper(16)


@intrinsic
def address(typing_context, array):
    """The address of an array's first byte, as int64.

    The other intrinsics accept it in place of the array.
    """

    def codegen(context, builder, signature, args):
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(data, ir.IntType(64))

    return types.int64(array), codegen


@intrinsic
def folded_product(typing_context, a, b):
    """The high half xor the low half of the 128-bit product of two uint64."""

    def codegen(context, builder, signature, args):
        wide, narrow = ir.IntType(128), ir.IntType(64)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), narrow)
        return builder.xor(high, builder.trunc(product, narrow))

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def trailing_zeros(typing_context, word):
    """The number of 0 bits below the lowest 1 bit of ``word``, a uint64 other than 0."""

    def codegen(context, builder, signature, args):
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def copy_bytes(typing_context, target, at, source, start, count):
    """Copy ``count`` bytes from ``source[start]`` to ``target[at]``; the arrays do not overlap."""

    def codegen(context, builder, signature, args):
        into = _pointer(context, builder, signature.args[0], args[0], args[1], 8)
        out_of = _pointer(context, builder, signature.args[2], args[2], args[3], 8)
        cgutils.raw_memcpy(builder, into, out_of, args[4], 1)
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64, types.int64), codegen


@intrinsic
def copy16(typing_context, target, at, source, start):
    """Copy 16 bytes from ``source[start]`` to ``target[at]``. Reads all before it writes."""

    def codegen(context, builder, signature, args):
        into = _pointer(context, builder, signature.args[0], args[0], args[1], 128)
        out_of = _pointer(context, builder, signature.args[2], args[2], args[3], 128)
        value = builder.load(out_of)
        value.align = 1
        builder.store(value, into).align = 1
        return context.get_dummy_value()

    return types.none(target, types.int64, source, types.int64), codegen


def _call(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    wide = ir.IntType(64)
    kind = ir.FunctionType(wide, [wide] * (len(args) - 1))
    return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])


@intrinsic
def call2(typing_context, function, first, second):
    """The int64 result of the C function at address ``function``, called with two integers."""
    return types.int64(*[types.int64] * 3), _call


@intrinsic
def call5(typing_context, function, first, second, third, fourth, fifth):
    """The int64 result of the C function at address ``function``, called with five integers."""
    return types.int64(*[types.int64] * 6), _call


@cache
def _crc_instruction() -> str | None:
    """The LLVM name of the processor's instruction for CRC-32C of 8 bytes. None if it has none."""
    features = binding.get_host_cpu_features()
    architecture = binding.get_process_triple().split("-")[0]
    if architecture == "x86_64" and features.get("sse4.2"):
        return "llvm.x86.sse42.crc32.64.64"
    if architecture in ("aarch64", "arm64") and features.get("crc"):
        return "llvm.aarch64.crc32cx"
    return None


@intrinsic
def has_crc32c_step(typing_context):
    """Whether the processor has the instruction of ``crc32c_step``. Constant in a kernel."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.boolean, _crc_instruction() is not None)

    return types.boolean(), codegen


@intrinsic
def crc32c_step(typing_context, crc, word):
    """Continue the CRC-32C ``crc`` over the 8 bytes ``word``. Requires ``has_crc32c_step``."""

    def codegen(context, builder, signature, args):
        wide, narrow = ir.IntType(64), ir.IntType(32)
        name = _crc_instruction()
        if name is None:
            return args[0]
        if name == "llvm.x86.sse42.crc32.64.64":
            kind = ir.FunctionType(wide, [wide, wide])
            function = cgutils.get_or_insert_function(builder.module, kind, name)
            return builder.call(function, args)
        kind = ir.FunctionType(narrow, [narrow, wide])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        return builder.zext(builder.call(function, [builder.trunc(args[0], narrow), args[1]]), wide)

    return types.uint64(types.uint64, types.uint64), codegen


_CARRYLESS = "llvm.x86.pclmulqdq"
# x^(512+32) and x^(512-32), then x^(128+32) and x^(128-32), modulo CRC-32's polynomial, with
# reflected bits
_FOLD_64 = 0x154442BD4, 0x1C6E41596
_FOLD_16 = 0x1751997D0, 0x0CCAA009E


@cache
def _has_carryless_product() -> bool:
    architecture = binding.get_process_triple().split("-")[0]
    return architecture == "x86_64" and bool(binding.get_host_cpu_features().get("pclmul"))


@intrinsic
def has_crc32_fold(typing_context):
    """Whether the processor has carry-less products. A constant in the compiled kernel."""

    def codegen(context, builder, signature, args):
        return context.get_constant(types.boolean, _has_carryless_product())

    return types.boolean(), codegen


@intrinsic
def crc32_fold(typing_context, place, end, crc):
    """Fold the bytes from address ``place`` to ``end`` into 16 bytes with the same CRC-32.

    The number of bytes is a multiple of 16 and at least 64. Returns (first 8 bytes, last 8 bytes)
    as uint64, including the previous ``crc``. The result is undefined without ``has_crc32_fold``.

    Source: Gopal and others, "Fast CRC computation for generic polynomials using PCLMULQDQ", Intel
    2009; its constants for the bit-reflected CRC-32.
    """

    def codegen(context, builder, signature, args):
        result = types.UniTuple(types.uint64, 2)
        if not _has_carryless_product():
            return context.make_tuple(builder, result, [args[2], args[2]])
        wide, pair = ir.IntType(64), ir.VectorType(ir.IntType(64), 2)
        kind = ir.FunctionType(pair, [pair, pair, ir.IntType(8)])
        multiply = cgutils.get_or_insert_function(builder.module, kind, _CARRYLESS)
        place, end = cgutils.alloca_once_value(builder, args[0]), args[1]

        def load(at: int) -> Any:
            address = builder.add(builder.load(place), ir.Constant(wide, at))
            value = builder.load(builder.inttoptr(address, pair.as_pointer()))
            value.align = 1
            return value

        def folded(value: Any, by: tuple[int, int], onto: Any) -> Any:
            factors = ir.Constant(pair, by)
            halves = [
                builder.call(multiply, [value, factors, ir.Constant(ir.IntType(8), half)])
                for half in (0x00, 0x11)
            ]
            return builder.xor(builder.xor(*halves), onto)

        def advance(by: int) -> None:
            builder.store(builder.add(builder.load(place), ir.Constant(wide, by)), place)

        def has(count: int) -> Any:
            behind = builder.add(builder.load(place), ir.Constant(wide, count))
            return builder.icmp_unsigned("<=", behind, end)

        def loop(step: int, body: Any) -> None:
            test, work, after = (builder.append_basic_block() for _ in range(3))
            builder.branch(test)
            builder.position_at_end(test)
            builder.cbranch(has(step), work, after)
            builder.position_at_end(work)
            body()
            advance(step)
            builder.branch(test)
            builder.position_at_end(after)

        first = builder.insert_element(
            ir.Constant(pair, [0, 0]), args[2], ir.Constant(ir.IntType(32), 0)
        )
        lanes = [cgutils.alloca_once(builder, pair) for _ in range(4)]
        for n, lane in enumerate(lanes):
            value = load(16 * n)
            builder.store(builder.xor(value, first) if n == 0 else value, lane)
        advance(64)

        def by_64() -> None:
            for n, lane in enumerate(lanes):
                builder.store(folded(builder.load(lane), _FOLD_64, load(16 * n)), lane)

        loop(64, by_64)
        whole = lanes[0]
        for lane in lanes[1:]:
            builder.store(folded(builder.load(whole), _FOLD_16, builder.load(lane)), whole)
        loop(16, lambda: builder.store(folded(builder.load(whole), _FOLD_16, load(0)), whole))
        value = builder.load(whole)
        words = [builder.extract_element(value, ir.Constant(ir.IntType(32), n)) for n in range(2)]
        return context.make_tuple(builder, result, words)

    return types.UniTuple(types.uint64, 2)(types.int64, types.int64, types.uint64), codegen
