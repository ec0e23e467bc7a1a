"""What all compiled loops share: how they are compiled, prefetching, and the hash.

Numba keeps compiled code beside the files and compiles a function again when its own file changes.
It does not notice changes of this file: after one, remove the ``__pycache__`` of this folder.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fleetx.ps.tables.hashing import FIRST, SECOND

AHEAD = 32
"""Rows between the one that is worked on and the one that is asked for from memory."""
LINE = 16
"""Floats in a cache line."""

# All loops run without the interpreter's lock (nogil), so other threads may run meanwhile. That is
# safe because the caller holds the lock of the table: an arena that grew during a loop would move
# its memory away under it. Nor are indexes checked: slots come from the table's own index, which
# gives no row that the arena lacks. Division by zero gives infinity, as numpy has it.

compiled = njit(nogil=True, cache=True, error_model="numpy", _nrt=False)
"""For loops over arrays of the caller, whose references are not counted.

Counting would be several atomic instructions for each row. It is safe to leave it out because the
caller keeps its arrays until the call returns, and because a view that is made inside is gone by
then. So such a function must neither return nor keep an array, nor make one: numba refuses to
compile the latter.
"""
allocating = njit(nogil=True, cache=True, error_model="numpy")
"""For those that return new arrays, whose references have to be counted."""
inlined = njit(inline="always", error_model="numpy")


def _emit_prefetch(builder: Any, place: Any) -> None:
    # In a register of its own: some ARM processors ignore a prefetch whose address is a sum.
    one = ir.FunctionType(place.type, [place.type])
    place = builder.asm(one, "", "=r,0", [place], False)
    word = ir.IntType(32)
    call = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
    function = cgutils.get_or_insert_function(builder.module, call, "llvm.prefetch.p0")
    # For reading, to be kept in all caches, as data.
    builder.call(function, [place, word(0), word(3), word(1)])


@intrinsic
def prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Ask memory for ``array[index]`` without waiting for it.

    Any index will do, also -1 or one behind the end: a prefetch is a hint and never faults.
    """

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = signature.args[0]
        view = context.make_array(kind)(context, builder, args[0])
        place = cgutils.get_item_pointer(context, builder, kind, view, [args[1]], wraparound=False)
        _emit_prefetch(builder, builder.bitcast(place, ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(array, types.intp), emit


@intrinsic
def word_at(_typing: Any, address: Any) -> Any:
    """The eight bytes at an address, a whole number; the caller knows that they are there."""

    def emit(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.load(builder.inttoptr(args[0], word.as_pointer()))

    return types.int64(types.uint64), emit


@intrinsic
def ask_for(_typing: Any, address: Any) -> Any:
    """``prefetch``, for an address."""

    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        _emit_prefetch(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.uint64), emit


@inlined
def mix(value: Any) -> Any:
    """The same as ``hashing.mixed``, which places on servers and in files depend on."""
    h = np.uint64(value)
    h ^= h >> np.uint64(33)
    h *= np.uint64(FIRST)
    h ^= h >> np.uint64(33)
    h *= np.uint64(SECOND)
    h ^= h >> np.uint64(33)
    return h
