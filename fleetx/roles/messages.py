"""Small messages between workers, without pickle: bytes, values, and trees of tensors.

Every function is a collective of the group that it gets: all members call it.
"""

import json
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from fleetx.torch_internals import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

Described = list[Any]
"""Shape, name of the type, and whether gradients are wanted."""


def carried_on(group: dist.ProcessGroup) -> torch.device:
    """A device whose tensors the group can carry."""
    return torch.device("cpu" if "cpu:" in dist.get_backend_config(group) else "cuda")


def smallest(number: int, group: dist.ProcessGroup) -> int:
    """The smallest of the numbers of all members."""
    answer = torch.tensor(number, device=carried_on(group))
    dist.all_reduce(answer, dist.ReduceOp.MIN, group=group)
    return int(answer)


def of_first(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What the first member has; all give tensors of one shape and type."""
    told = tensor.to(carried_on(group))
    dist.broadcast(told, group=group, group_src=0)
    return told.cpu()


def gather_bytes(payload: bytes, group: dist.ProcessGroup) -> list[bytes]:
    """Return the bytes of all members of a gloo group, in their order."""
    size = dist.get_world_size(group)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(lengths, torch.tensor([len(payload)]), group=group)
    longest = max(int(length) for length in lengths)
    # Gloo gathers equal shapes only; one more byte keeps an empty payload from an empty tensor.
    padded = torch.frombuffer(
        bytearray(payload.ljust(longest + 1, b"\0")), dtype=torch.uint8
    ).clone()
    blocks = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(blocks, padded, group=group)
    return [
        block.numpy().tobytes()[: int(length)]
        for block, length in zip(blocks, lengths, strict=True)
    ]


def swap_bytes(pieces: list[bytes], group: dist.ProcessGroup) -> list[bytes]:
    """Send the i-th piece to the i-th worker; returns what the workers sent, in their order."""
    own, size = dist.get_rank(group), dist.get_world_size(group)
    lengths = torch.tensor([len(piece) for piece in pieces])
    table = [torch.zeros_like(lengths) for _ in range(size)]
    dist.all_gather(table, lengths, group=group)
    # One more byte, for an empty tensor cannot be sent.
    coming = [torch.empty(int(row[own]) + 1, dtype=torch.uint8) for row in table]
    going = [torch.frombuffer(bytearray(piece + b"\0"), dtype=torch.uint8) for piece in pieces]
    jobs = []
    for other in range(size):
        if other != own:
            jobs.append(dist.isend(going[other], group_dst=other, group=group))
            jobs.append(dist.irecv(coming[other], group_src=other, group=group))
    for job in jobs:
        assert job is not None
        job.wait()
    coming[own] = going[own]
    return [block[:-1].numpy().tobytes() for block in coming]


def broadcast_json(
    fact: Any, *, source: int, group: dist.ProcessGroup, device: torch.device
) -> Any:
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
def broadcast_tree(
    tree: Any, *, source: int, group: dist.ProcessGroup, device: torch.device
) -> Any:
    """A tree of tensors and plain values of one member, on all of them."""
    speaks = dist.get_rank(group) == source
    leaves, spec = tree_flatten(tree) if speaks else ([], None)
    kinds = [describe(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    flags = [isinstance(leaf, Tensor) for leaf in leaves]
    fact = [treespec_dumps(spec), kinds, flags] if spec is not None else None
    text, kinds, flags = broadcast_json(fact, source=source, group=group, device=device)
    if not speaks:
        made = zip(kinds, flags, strict=True)
        leaves = [described(kind, device).detach() if flag else kind for kind, flag in made]
    for leaf, flag in zip(leaves, flags, strict=True):
        if flag:
            dist.broadcast(leaf.contiguous(), group=group, group_src=source)
    return tree_unflatten(leaves, treespec_loads(text))


def as_array(value: Any) -> np.ndarray[Any, Any]:
    """A numeric array of a scalar, a list, an array or a tensor on any device."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        # numpy has no bfloat16; float32 holds every one of its values.
        value = (value.float() if value.dtype is torch.bfloat16 else value).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"the input {value!r} is not numeric (numpy makes {array.dtype} of it); "
            "pass numbers, lists of equal length, arrays or tensors"
        )
    return array


def encode(value: Any) -> bytes:
    """One line of JSON that says what follows, then the content."""
    if isinstance(value, np.ndarray | torch.Tensor):
        array = as_array(value)
        return _line({"dtype": array.dtype.str, "shape": array.shape}) + array.tobytes()
    if isinstance(value, np.generic):
        value = value.item()
    _check(value)
    return _line({}) + json.dumps(value).encode()


def decode(data: bytes) -> Any:
    """The value that `encode` wrote; tuples come back as lists, tensors as arrays."""
    line, _, content = data.partition(b"\n")
    head = json.loads(line)
    if "dtype" not in head:
        return json.loads(content)
    return np.frombuffer(bytearray(content), dtype=np.dtype(head["dtype"])).reshape(head["shape"])


def _line(head: dict[str, Any]) -> bytes:
    return json.dumps(head).encode() + b"\n"


def _check(value: Any) -> None:
    """Refuse what JSON would change or cannot write."""
    if value is None or isinstance(value, bool | int | float | str):
        return
    if isinstance(value, list | tuple):
        for item in value:
            _check(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(
                    f"dict key {key!r} is not a string and would come back as one; "
                    "use string keys, or gather a list of pairs"
                )
            _check(item)
    else:
        raise TypeError(
            f"{type(value).__name__} cannot be gathered; pass numbers, strings, lists and dicts of "
            "them, or one array or tensor"
        )
