"""Functions of torch on tensors that are cut along each dimension: right, or an error, never else.

DTensor has been wrong in silence for some of them, which `complete.py` names.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional

from fleetx.strategies.tensor_parallel.regions import Border
from fleetx.testing import world
from fleetx.torch_internals import tree_leaves

SHAPE = 4, 6, 8
Function = Callable[[Tensor, int], Any]
SOME, NONE = torch.tensor([2, 0, 1]), torch.zeros(2, 2, 2, dtype=torch.long)
ALONG = (
    *("all", "amax", "amin", "aminmax", "any", "argmax", "argmin", "argsort", "count_nonzero"),
    *("cummax", "cummin", "cumprod", "cumsum", "diff", "logcumsumexp", "log_softmax", "logsumexp"),
    *("max", "mean", "median", "min", "mode", "nanmean", "nanmedian", "nansum", "norm", "prod"),
    *("softmax", "sort", "squeeze", "std", "std_mean", "sum", "unsqueeze", "var", "var_mean"),
)
"""Functions with an argument ``dim``."""
OTHERS: dict[str, Function] = {
    "bmm": lambda x, d: x @ x.transpose(-1, -2),
    "cat": lambda x, d: torch.cat([x, x * 2], d),
    "conv": lambda x, d: functional.conv1d(x, torch.ones(2, 6, 3), padding=1),
    "cosine": lambda x, d: functional.cosine_similarity(x, x * 2 + 1, dim=d),
    "cross entropy": lambda x, d: functional.cross_entropy(x, torch.zeros(4, 8, dtype=torch.long)),
    "diagonal": lambda x, d: x.diagonal(0, -2, -1),
    "einsum": lambda x, d: torch.einsum("abc,abd->acd", x, x),
    "expand": lambda x, d: x.unsqueeze(0).expand(2, 4, 6, 8),
    "flip": lambda x, d: x.flip(d),
    "flatten": lambda x, d: x.flatten(-2, -1),
    "gather": lambda x, d: x.gather(d, NONE),
    "glu": functional.glu,
    "index": lambda x, d: x[..., -1],
    "indices": lambda x, d: x[:, SOME],
    "index_select": lambda x, d: x.index_select(d, SOME),
    "kl_div": lambda x, d: functional.kl_div(x.log_softmax(d), x.softmax(d).detach()),
    "kthvalue": lambda x, d: x.kthvalue(2, d),
    "layer_norm": lambda x, d: functional.layer_norm(x, SHAPE[1:]),
    "mask": lambda x, d: x[x > 0],
    "mse": lambda x, d: functional.mse_loss(x, torch.ones(SHAPE)),
    "movedim": lambda x, d: x.movedim(d, 0),
    "narrow": lambda x, d: x.narrow(d, 1, 2),
    "normalize": lambda x, d: functional.normalize(x, dim=d),
    "pad": lambda x, d: functional.pad(x, (1, 2)),
    "pool": lambda x, d: functional.max_pool1d(x, 2),
    "repeat_interleave": lambda x, d: x.repeat_interleave(2, d),
    "roll": lambda x, d: x.roll((1, 2), (d, 0)),
    "rot90": lambda x, d: x.rot90(1, (0, d)),
    "scatter": lambda x, d: x.scatter(d, NONE, torch.ones(2, 2, 2)),
    "scatter_add": lambda x, d: x.scatter_add(d, NONE, torch.ones(2, 2, 2)),
    "select": lambda x, d: x.select(d, 1),
    "stack": lambda x, d: torch.stack([x, x * 2], d),
    "steps": lambda x, d: x[:, ::2],
    "take_along_dim": lambda x, d: torch.take_along_dim(x, x.argsort(d), d),
    "tile": lambda x, d: x.tile(1, 2, 1),
    "topk": lambda x, d: x.topk(2, d),
    "transpose": lambda x, d: x.transpose(d, 0),
    "tril": lambda x, d: x.tril(),
    "unflatten": lambda x, d: x.unflatten(d, (-1, 2)),
    "variance": lambda x, d: x.var(),
    "vector_norm": lambda x, d: torch.linalg.vector_norm(x, 3, d),
}


def along(name: str, x: Tensor, dim: int) -> Any:
    return getattr(torch, name)(x, dim=dim)


FUNCTIONS: dict[str, Function] = {
    **{name: partial(along, name) for name in ALONG},
    **OTHERS,
}


def gradient(results: list[Tensor], x: Tensor) -> Tensor | None:
    """Of the first result that has one, by weights that differ."""
    found = next((one for one in results if one.requires_grad), None)
    if found is None:
        return None
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    return torch.autograd.grad((found * weights).sum(), x)[0]


def outcome(run: Callable[[Tensor], Any]) -> list[Tensor | None]:
    """All results, and the gradient."""
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(3)).requires_grad_()
    leaves = [leaf for leaf in tree_leaves(run(x)) if isinstance(leaf, Tensor)]
    results = [leaf.full_tensor() if isinstance(leaf, DTensor) else leaf for leaf in leaves]
    return [*results, gradient(results, x)]


def on_parts(name: str, dim: int, cut: int | None, x: Tensor) -> Any:
    """Call it with a tensor that is cut along a dimension, or is not."""
    if cut is not None:
        assert isinstance(x, DTensor)
        x = x.redistribute(placements=[Shard(cut)])
    return FUNCTIONS[name](x, dim)


def compared(name: str) -> tuple[list[str], int]:
    """Where it is wrong, and how often it is an error."""
    border = Border(init_device_mesh("cpu", (2,), mesh_dim_names=("tp",)))
    wrong, errors = [], 0
    for dim in (-1, 1):
        usual = outcome(partial(on_parts, name, dim, None))
        for cut in range(len(SHAPE)):
            try:
                found = outcome(border.around(partial(on_parts, name, dim, cut)))
            except Exception:
                errors += 1
                continue
            try:
                torch.testing.assert_close(found, usual, equal_nan=True)
            except AssertionError as error:
                wrong.append(f"{name} along {dim}, cut along {cut}: {error}")
    return wrong, errors


@world(2)
def test_no_function_is_wrong_in_silence() -> None:
    wrong, errors = [], {}
    for name in FUNCTIONS:
        found, failed = compared(name)
        wrong += found
        errors[name] = failed
    assert wrong == []
    assert {name for name, failed in errors.items() if failed} == set()
