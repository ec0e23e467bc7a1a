"""Complex parameters that are cut over ranks."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch


@cache
def update_cut_complex_numbers() -> None:
    """Let update rules move complex parameters that are cut.

    Rules look at them as at pairs of real numbers and change those. torch knows no rule for that
    look, so it gathers what is cut and looks at a copy, in which every change is lost: all but SGD
    would leave such parameters as they are.
    """
    # Loaded here: jobs that cut nothing do not pay for it.
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding

    @register_sharding(torch.ops.aten.view_as_real.default)  # type: ignore[untyped-decorator]
    def pairs(numbers: Any) -> Sequence[tuple[list[Any], list[Any]]]:
        """A pair lies where its number lies, behind all dimensions that may be cut."""
        cuts = [Shard(dimension) for dimension in range(numbers.ndim)]
        return [([place], [place]) for place in (Replicate(), *cuts)]
