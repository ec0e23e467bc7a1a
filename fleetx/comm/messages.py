"""Small facts and trees of tensors that one rank of a group tells the others; no pickle."""

import json
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

Described = list[Any]
"""Shape, name of the type, and whether gradients are wanted."""


def tell(fact: Any, *, source: int, group: dist.ProcessGroup, device: torch.device) -> Any:
    """What the member ``source`` of the group has to say, as JSON; others pass anything."""
    speaks = dist.get_rank(group) == source
    text = json.dumps(fact).encode() if speaks else b""
    length = torch.tensor([len(text)], device=device)
    dist.broadcast(length, group=group, group_src=source)
    content = torch.zeros(int(length), dtype=torch.uint8, device=device)
    if speaks:
        content.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    dist.broadcast(content, group=group, group_src=source)
    return json.loads(bytes(content.cpu().numpy()))


def describe(tensor: Tensor) -> Described:
    """What another rank must know to receive the tensor."""
    kind = str(tensor.dtype).removeprefix("torch.")
    return [list(tensor.shape), kind, tensor.requires_grad]


def described(known: Described, device: torch.device | str) -> Tensor:
    """A tensor of zeros that fits a description."""
    shape, kind, wanted = known
    made = torch.zeros(shape, dtype=getattr(torch, kind), device=device)
    return made.requires_grad_() if wanted else made


@torch.no_grad()
def spread(tree: Any, *, source: int, group: dist.ProcessGroup, device: torch.device) -> Any:
    """A tree of tensors and plain values of one member, on all of them."""
    speaks = dist.get_rank(group) == source
    leaves, spec = tree_flatten(tree) if speaks else ([], None)
    kinds = [describe(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    flags = [isinstance(leaf, Tensor) for leaf in leaves]
    fact = [treespec_dumps(spec), kinds, flags] if spec is not None else None
    text, kinds, flags = tell(fact, source=source, group=group, device=device)
    if not speaks:
        made = zip(kinds, flags, strict=True)
        leaves = [described(kind, device).detach() if flag else kind for kind, flag in made]
    for leaf, flag in zip(leaves, flags, strict=True):
        if flag:
            dist.broadcast(leaf.contiguous(), group=group, group_src=source)
    return tree_unflatten(leaves, treespec_loads(text))
