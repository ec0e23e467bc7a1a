"""What a run of a program computes, and what becomes of it when a batch is cut into several."""

from collections.abc import Sequence

import torch
from torch import Tensor, fx

from fleetx.static.record.program import Program


def everything(program: Program, loss: str) -> tuple[fx.Node, ...]:
    """The loss and all that nobody else uses: layouts must know what any fetch may need."""
    first = program.node(loss)
    ends = (
        node
        for node in program.graph.nodes
        if node.op.startswith("call")
        and not node.users
        and isinstance(node.meta.get("val"), Tensor)
    )
    return (first, *(node for node in ends if node is not first))


def joined(values: Sequence[Tensor], node: fx.Node) -> Tensor:
    """One value from those of micro-batches: rows behind each other, of other numbers the mean.

    Numbers that are counted in whole are those of the last micro-batch.
    """
    first = values[0].detach()
    if len(values) == 1:
        return first
    sizes = node.meta["val"].shape
    # Comparing a free size would assume something about it.
    if first.dim() and not (isinstance(sizes[0], int) and sizes[0] == first.shape[0]):
        return torch.cat([value.detach() for value in values])
    if first.is_floating_point():
        return torch.stack([value.detach() for value in values]).mean(0)
    return values[-1].detach()
