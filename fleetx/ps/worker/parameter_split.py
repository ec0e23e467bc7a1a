"""Which server holds which part of which parameter."""

import heapq
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleetx.ps.tables.dense_table import Block


@dataclass(frozen=True, kw_only=True)
class ParameterSplit:
    """How parameters are spread over servers."""

    method: str = "BySize"
    """"BySize" lets servers carry alike, "RoundRobin" deals blocks out in turn, and "HashName"
    goes by the name of the parameter."""
    slice_var_up: bool = True
    """Cut large parameters into blocks."""
    min_block_size: int = 1024
    """The least numbers in a block."""

    def over(self, shapes: Mapping[str, tuple[int, ...]], servers: int) -> list[tuple[Block, ...]]:
        """The blocks of each server."""
        each = shapes.items()
        blocks = [block for name, shape in each for block in self.blocks(name, shape, servers)]
        places = {"BySize": _by_size, "RoundRobin": _in_turn, "HashName": _by_name}
        held: list[list[Block]] = [[] for _ in range(servers)]
        for block, server in zip(blocks, places[self.method](blocks, servers), strict=True):
            held[server].append(block)
        return [tuple(mine) for mine in held]

    def blocks(self, name: str, shape: tuple[int, ...], servers: int) -> list[Block]:
        """One parameter in blocks of whole rows, one for each server at most."""
        size = math.prod(shape)
        if not self.slice_var_up or size == 0:
            return [(name, 0, size)]
        pieces = min(servers, max(1, size // self.min_block_size))
        block = math.ceil(size / pieces)
        if len(shape) > 1:
            row = math.prod(shape[1:])
            block = math.ceil(block / row) * row
        return [(name, begin, min(begin + block, size)) for begin in range(0, size, block)]


def _by_size(blocks: Sequence[Block], servers: int) -> list[int]:
    """The largest first, each to who has least, so that servers move as many numbers."""
    sizes = [end - begin for _, begin, end in blocks]
    loads = [(0, 0, server) for server in range(servers)]  # numbers, blocks
    found = [0] * len(blocks)
    for at in sorted(range(len(blocks)), key=sizes.__getitem__, reverse=True):
        numbers, count, server = loads[0]
        found[at] = server
        heapq.heapreplace(loads, (numbers + sizes[at], count + 1, server))
    return found


def _in_turn(blocks: Sequence[Block], servers: int) -> list[int]:
    return [at % servers for at in range(len(blocks))]


def _by_name(blocks: Sequence[Block], servers: int) -> list[int]:
    # Not Python's hash, which differs between processes.
    return [zlib.crc32(f"{name}.{begin}".encode()) % servers for name, begin, _ in blocks]
