"""Facts and trees of tensors from one rank to the others."""

from typing import Any

import torch
import torch.distributed as dist

from fleetx.roles.messages import broadcast_json, broadcast_tree, describe, described
from fleetx.testing import world

CPU = torch.device("cpu")


@world(3)
def test_everyone_hears_the_speaker() -> None:
    group, rank = dist.group.WORLD, dist.get_rank()
    assert group is not None
    for source in range(3):
        fact = {"from": rank, "words": ["a", None, 1.5], "empty": []}
        heard = broadcast_json(fact, source=source, group=group, device=CPU)
        assert heard == {"from": source, "words": ["a", None, 1.5], "empty": []}


@world(2)
def test_a_tree_of_tensors_arrives_as_it_was() -> None:
    group = dist.group.WORLD
    assert group is not None
    tree: Any = {
        "a": (torch.arange(6).view(2, 3), [torch.tensor(1.5, dtype=torch.float64)]),
        "b": {"flag": True, "half": torch.ones(0, 4, dtype=torch.bfloat16)},
        "turned": torch.arange(6.0).view(2, 3).t(),
    }
    got = broadcast_tree(tree if dist.get_rank() == 1 else None, source=1, group=group, device=CPU)
    assert torch.equal(got["a"][0], tree["a"][0])
    assert got["a"][1][0].dtype == torch.float64
    assert got["b"]["flag"] is True
    assert got["b"]["half"].shape == (0, 4)
    assert torch.equal(got["turned"], tree["turned"])
    assert isinstance(got["a"], tuple)


def test_a_description_makes_a_tensor_that_fits() -> None:
    wanted = torch.zeros(2, 3, dtype=torch.bfloat16, requires_grad=True)
    made = described(describe(wanted), "cpu")
    assert (made.shape, made.dtype, made.requires_grad) == ((2, 3), torch.bfloat16, True)
    assert not described(describe(torch.zeros(2, dtype=torch.int32)), "meta").requires_grad
