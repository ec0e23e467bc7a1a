"""Tensors that lie in several others are read as torch would put them together."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fleetx.comm.shares import Share
from fleetx.io.arrangement import Arrangement, joined, stacked


@given(
    experts=st.integers(1, 4),
    dims=st.tuples(st.integers(-3, 2), st.integers(-3, 2)),
    bounds=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=3, max_size=3),
)
def test_any_share(experts: int, dims: tuple[int, int], bounds: list[tuple[int, int]]) -> None:
    """Two lists of matrices, stacked and then joined, as gates and ups of experts are."""
    stored = {
        f"{name}.{number}": torch.randn(2, 3)
        for name in ("gate", "up")
        for number in range(experts)
    }
    lists = [[f"{name}.{number}" for number in range(experts)] for name in ("gate", "up")]
    stack, cat = dims
    whole = torch.cat(
        [torch.stack([stored[name] for name in names], dim=stack) for names in lists], dim=cat
    )
    found = joined(
        [
            stacked([Arrangement.of(name, stored[name].shape) for name in names], stack)
            for names in lists
        ],
        cat,
    )
    assert found.shape == tuple(whole.shape)
    share = tuple(
        slice(min(a, b, size), min(max(a, b), size))
        for (a, b), size in zip(bounds, whole.shape, strict=True)
    )
    read = list[str]()

    def part(name: str, index: Share) -> Tensor:
        read.append(name)
        return stored[name][index]

    assert torch.equal(found.read(part, share), whole[share])
    assert len(set(read)) == len(read)
    needed = sum(bool(one.meets(share)) for one in found.pieces)
    assert len(read) == needed, "what lies outside of a share is not read"
