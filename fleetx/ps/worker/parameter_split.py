"""Which server holds which part of which parameter."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from fleetx.ps.tables.dense_table import Block


@dataclass(frozen=True, kw_only=True)
class ParameterSplit:
    """How parameters are spread over servers."""

    method: str = "RoundRobin"
    """"RoundRobin" deals blocks out in turn, "HashName" goes by the name of the parameter."""
    slice_var_up: bool = True
    """Cut large parameters into blocks."""
    min_block_size: int = 8192
    """The least numbers in a block."""

    def over(self, shapes: Mapping[str, tuple[int, ...]], servers: int) -> list[tuple[Block, ...]]:
        """The blocks of each server."""
        held: list[list[Block]] = [[] for _ in range(servers)]
        turn = 0
        for name, shape in shapes.items():
            for block in self.blocks(name, shape, servers):
                server = turn % servers if self.method == "RoundRobin" else _of_name(block, servers)
                held[server].append(block)
                turn += 1
        return [tuple(blocks) for blocks in held]

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


def _of_name(block: Block, servers: int) -> int:
    # Not Python's hash, which differs between processes.
    name, begin, _ = block
    return zlib.crc32(f"{name}.{begin}".encode()) % servers
