"""Functions of torch as layers of others call them, on tensors that ranks share.

Beside those of `test_functions.py`, which are called along each dimension. Each gives what it gives
to one process, forward and backward, and numbers that Python code takes out of tensors are those of
the whole. DTensor computes a part of them otherwise without a word.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fleetx.strategies.tensor_parallel.regions import Border
from fleetx.testing import world


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def attention(x: Tensor, **options: Any) -> Tensor:
    return F.scaled_dot_product_attention(x, x, x, **options)


def with_column(x: Tensor) -> Tensor:
    x[:, 2] = 0.0
    return x


def with_mask(x: Tensor) -> Tensor:
    x[x > 0] = 0.0
    return x


COMPUTED: dict[str, tuple[Callable[[Any], Tensor], tuple[int, ...]]] = {
    "chunk first": (lambda x: x.chunk(2, -1)[0], (3, 8)),
    "chunk second": (lambda x: x.chunk(2, -1)[1].relu(), (3, 8)),
    "split first": (lambda x: x.split(2, -1)[1], (3, 8)),
    "split uneven one": (lambda x: x.split([2, 5, 1], -1)[1].tanh(), (3, 8)),
    "unbind one": (lambda x: x.view(3, 2, 4).unbind(1)[0], (3, 8)),
    "unbind last": (lambda x: x.unbind(-1)[3], (3, 8)),
    "tensor_split": (lambda x: x.tensor_split(3, -1)[1], (3, 8)),
    "linalg norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (3, 8)),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 7, 3])), (3, 8)),
    "cross_entropy sm": (
        lambda x: F.cross_entropy(x, torch.tensor([1, 7, 3]), label_smoothing=0.1),
        (3, 8),
    ),
    "cross_entropy ig": (lambda x: F.cross_entropy(x, torch.tensor([1, -100, 3])), (3, 8)),
    "nll": (lambda x: F.nll_loss(x.log_softmax(-1), torch.tensor([1, 7, 3])), (3, 8)),
    "pad const0": (lambda x: F.pad(x, (0, 0, 1, 1)), (3, 8)),
    "pad reflect": (lambda x: F.pad(x.unsqueeze(0), (1, 2), mode="reflect"), (3, 8)),
    "pad replicate": (lambda x: F.pad(x.unsqueeze(0), (1, 2), mode="replicate"), (3, 8)),
    "pad circular": (lambda x: F.pad(x.unsqueeze(0), (1, 2), mode="circular"), (3, 8)),
    "interpolate nearest": (lambda x: F.interpolate(x.unsqueeze(1), scale_factor=2), (3, 8)),
    "interpolate linear": (
        lambda x: F.interpolate(x.unsqueeze(1), scale_factor=2, mode="linear"),
        (3, 8),
    ),
    "max_pool1d": (lambda x: F.max_pool1d(x.unsqueeze(1), 3, 2), (3, 8)),
    "max_pool2d": (lambda x: F.max_pool2d(x.view(3, 1, 4, 4), 2), (3, 16)),
    "adaptive_max1": (lambda x: F.adaptive_max_pool1d(x.unsqueeze(1), 3), (3, 8)),
    "adaptive_max2": (lambda x: F.adaptive_max_pool2d(x.view(3, 1, 4, 4), 3), (3, 16)),
    "adaptive_avg1": (lambda x: F.adaptive_avg_pool1d(x.unsqueeze(1), 3), (3, 8)),
    "lp_pool": (lambda x: F.lp_pool1d(x.abs().unsqueeze(1) + 1, 2, 2), (3, 8)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x.abs().view(3, 1, 4, 4) + 1, 2, 2), (3, 16)),
    "fold": (lambda x: F.fold(x.view(3, 4, 4), (4, 4), 2, stride=2), (3, 16)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x.view(3, 4, 2, 2), 2), (3, 16)),
    "repeat": (lambda x: x.repeat(2, 3), (3, 8)),
    "where": (lambda x: torch.where(x > 0, x, x * 2), (3, 8)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, -1.0), (3, 8)),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (3, 8)),
    "einsum2": (lambda x: torch.einsum("ij,jk->ik", x, numbers(8, 4)), (3, 8)),
    "bmm": (lambda x: torch.bmm(x.view(3, 2, 4), x.view(3, 4, 2)), (3, 8)),
    "outer": (lambda x: torch.outer(x[0], x[1]), (3, 8)),
    "dot": (lambda x: x[0].dot(x[1]), (3, 8)),
    "mv": (lambda x: x.mv(numbers(8)), (3, 8)),
    "addmm": (lambda x: torch.addmm(numbers(3, 4), x, numbers(8, 4)), (3, 8)),
    "baddbmm": (
        lambda x: torch.baddbmm(numbers(3, 2, 2), x.view(3, 2, 4), x.view(3, 4, 2)),
        (3, 8),
    ),
    "matmul": (lambda x: x @ x.t(), (3, 8)),
    "triu": (lambda x: x.triu(1), (3, 8)),
    "diag": (lambda x: x.diagonal(), (3, 8)),
    "diag_embed": (lambda x: x.diag_embed(), (3, 8)),
    "trace": (lambda x: x[:, :3].trace(), (3, 8)),
    "index_add": (lambda x: x.index_add(1, torch.tensor([1, 6]), numbers(3, 2)), (3, 8)),
    "index_copy": (lambda x: x.index_copy(1, torch.tensor([1, 6]), numbers(3, 2)), (3, 8)),
    "index_put": (
        lambda x: x.index_put((torch.tensor([0, 1]), torch.tensor([1, 6])), numbers(2)),
        (3, 8),
    ),
    "scatter_reduce": (
        lambda x: x.scatter_reduce(1, torch.tensor([[1], [6], [0]]), numbers(3, 1), "amax"),
        (3, 8),
    ),
    "take": (lambda x: x.take(torch.tensor([0, 9, 17])), (3, 8)),
    "getitem mixed": (lambda x: x[torch.tensor([0, 1]), torch.tensor([2, 7])], (3, 8)),
    "getitem none": (lambda x: x[:, None, ::2], (3, 8)),
    "getitem neg": (lambda x: x[:, -1], (3, 8)),
    "unfold": (lambda x: x.unfold(1, 3, 2), (3, 8)),
    "cat0": (lambda x: torch.cat([x, x * 2], 0), (3, 8)),
    "hstack": (lambda x: torch.hstack([x, x * 2]), (3, 8)),
    "vstack": (lambda x: torch.vstack([x, x * 2]), (3, 8)),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0], (3, 8)),
    "cumulative_trapezoid": (lambda x: torch.cumulative_trapezoid(x, dim=-1), (3, 8)),
    "permute reshape": (lambda x: x.view(3, 2, 4).permute(2, 0, 1).reshape(4, 6), (3, 8)),
    "squeeze": (lambda x: x.unsqueeze(1).squeeze(1), (3, 8)),
    "rearr": (lambda x: x.reshape(3, 4, 2).transpose(1, 2).reshape(3, 8), (3, 8)),
    "dist": (lambda x: x.dist(x * 2), (3, 8)),
    "pairwise": (lambda x: F.pairwise_distance(x, x * 2 + 1), (3, 8)),
    "pdist": (F.pdist, (3, 8)),
    "triplet": (lambda x: F.triplet_margin_loss(x, x * 2, x * x), (3, 8)),
    "margin_ranking": (
        lambda x: F.margin_ranking_loss(x, x.detach() * 2, torch.ones(3, 8)),
        (3, 8),
    ),
    "hinge": (lambda x: F.hinge_embedding_loss(x, torch.ones(3, 8)), (3, 8)),
    "poisson": (lambda x: F.poisson_nll_loss(x, x.detach().abs()), (3, 8)),
    "gaussian_nll": (
        lambda x: F.gaussian_nll_loss(x, x.detach() * 2, x.detach() ** 2 + 0.1),
        (3, 8),
    ),
    "multi_margin": (lambda x: F.multi_margin_loss(x, torch.tensor([1, 7, 3])), (3, 8)),
    "multilabel": (lambda x: F.multilabel_soft_margin_loss(x, (numbers(3, 8) > 0).float()), (3, 8)),
    "multilabel_margin": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 2, -1, 0, 0, 0, 0, 0]] * 3)),
        (3, 8),
    ),
    "ctc": (
        lambda x: F.ctc_loss(
            x.view(3, 1, 8).log_softmax(-1),
            torch.tensor([[1]]),
            torch.tensor([3]),
            torch.tensor([1]),
        ),
        (3, 8),
    ),
    "mean odd": (lambda x: x.mean(), (3, 5)),
    "mean dim odd": (lambda x: x.mean(-1), (3, 5)),
    "var odd": (lambda x: x.var(-1), (3, 5)),
    "std odd": (lambda x: x.std(), (3, 5)),
    "sum odd": (lambda x: x.sum(-1), (3, 5)),
    "min": (lambda x: x.min(), (3, 8)),
    "max": (lambda x: x.max(), (3, 8)),
    "aminmax": (lambda x: torch.aminmax(x, dim=-1)[1], (3, 8)),
    "nan_to_num": (lambda x: x.nan_to_num(), (3, 8)),
    "fft": (lambda x: torch.fft.rfft(x).abs(), (3, 8)),
    "complex": (lambda x: torch.view_as_complex(x.view(3, 4, 2)).abs(), (3, 8)),
    "polar": (lambda x: torch.view_as_real(torch.polar(x.abs(), x)), (3, 8)),
    "renorm": (lambda x: x.renorm(2, 0, 1.0), (3, 8)),
    "lerp": (lambda x: torch.lerp(x, x * 2, 0.3), (3, 8)),
    "addcmul": (lambda x: torch.addcmul(x, x, x, value=0.5), (3, 8)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (3, 8)),
    "silu": (F.silu, (3, 8)),
    "mish": (F.mish, (3, 8)),
    "elu": (F.elu, (3, 8)),
    "selu": (F.selu, (3, 8)),
    "celu": (F.celu, (3, 8)),
    "softplus": (F.softplus, (3, 8)),
    "softsign": (F.softsign, (3, 8)),
    "tanhshrink": (F.tanhshrink, (3, 8)),
    "threshold": (lambda x: F.threshold(x, 0.1, -1.0), (3, 8)),
    "leaky": (lambda x: F.leaky_relu(x, 0.1), (3, 8)),
    "rrelu": (F.rrelu, (3, 8)),
    "erf": (lambda x: x.erf(), (3, 8)),
    "lgamma": (lambda x: (x.abs() + 1).lgamma(), (3, 8)),
    "digamma": (lambda x: (x.abs() + 1).digamma(), (3, 8)),
    "xlogy": (lambda x: torch.xlogy(x.abs(), x.abs() + 1), (3, 8)),
    "atan2": (lambda x: torch.atan2(x, x + 1), (3, 8)),
    "hypot": (lambda x: torch.hypot(x, x + 1), (3, 8)),
    "pow": (lambda x: x.abs().pow(2.5), (3, 8)),
    "rsqrt": (lambda x: (x.abs() + 0.1).rsqrt(), (3, 8)),
    "reciprocal": (lambda x: (x.abs() + 0.1).reciprocal(), (3, 8)),
    "sdpa": (lambda x: attention(x.view(3, 2, 2, 4)), (3, 16)),
    "sdpa causal": (lambda x: attention(x.view(3, 2, 2, 4), is_causal=True), (3, 16)),
    "embedding": (lambda x: F.embedding(torch.tensor([0, 2, 1]), x), (3, 8)),
    "embedding_bag": (lambda x: F.embedding_bag(torch.tensor([[0, 2], [1, 1]]), x), (3, 8)),
    "one_hot mul": (lambda x: x * F.one_hot(torch.tensor([1, 7, 3]), 8), (3, 8)),
    "bincount": (lambda x: x * torch.bincount(torch.tensor([1, 2, 2]), minlength=8), (3, 8)),
    "instance_norm": (lambda x: F.instance_norm(x.view(3, 2, 4)), (3, 8)),
    "batch_norm": (lambda x: F.batch_norm(x, torch.zeros(8), torch.ones(8), training=True), (3, 8)),
    "dropout0": (lambda x: F.dropout(x, 0.0), (3, 8)),
    "kron": (lambda x: torch.kron(x, x[:2, :2]), (3, 8)),
    "cov": (torch.cov, (3, 8)),
    "corrcoef": (torch.corrcoef, (3, 8)),
    "histc": (lambda x: x * x.detach().histc(8), (3, 8)),
    "searchsorted": (
        lambda x: x * torch.searchsorted(torch.linspace(-1, 1, 4), x.detach()),
        (3, 8),
    ),
    "bucketize": (lambda x: x * torch.bucketize(x.detach(), torch.linspace(-1, 1, 4)), (3, 8)),
    "all any": (lambda x: x * (x > 0).any(-1, keepdim=True) * (x < 9).all(), (3, 8)),
    "item": (lambda x: x * x.detach().sum().item(), (3, 8)),
    "tolist": (lambda x: x * x.detach().sum().tolist(), (3, 8)),
    "new_zeros +=": (lambda x: x.new_zeros(3, 8) + x, (3, 8)),
    "zeros_like": (lambda x: torch.zeros_like(x) + x, (3, 8)),
    "inplace add": (lambda x: (x * 1).add_(2), (3, 8)),
    "inplace mul view": (lambda x: (x * 1).view(3, 2, 4).mul_(2), (3, 8)),
    "setitem col": (lambda x: with_column(x * 1), (3, 8)),
    "setitem mask": (lambda x: with_mask(x * 1), (3, 8)),
    "linear 1": (lambda x: F.linear(x, numbers(1, 8)), (3, 8)),
    "conv2d": (lambda x: F.conv2d(x.view(3, 1, 4, 4), numbers(2, 1, 3, 3), padding=1), (3, 16)),
    "grid_sample": (lambda x: F.grid_sample(x.view(3, 1, 4, 4), torch.zeros(3, 2, 2, 2)), (3, 16)),
    "affine_grid": (lambda x: F.affine_grid(x.view(1, 2, 3), [1, 1, 2, 2]), (1, 6)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x.view(3, 4, 2, 2), 2), (3, 16)),
    "linalg inv": (lambda x: torch.linalg.inv(x[:, :3] + 3 * torch.eye(3)), (3, 8)),
    "linalg svd": (torch.linalg.svdvals, (3, 8)),
    "cross": (lambda x: torch.linalg.cross(x[:, :3], x[:, 3:6]), (3, 8)),
    "tensordot": (lambda x: torch.tensordot(x, x, ([1], [1])), (3, 8)),
    "chain_matmul": (lambda x: torch.linalg.multi_dot([x, numbers(8, 4), numbers(4, 2)]), (3, 8)),
    "msort": (lambda x: x.msort(), (3, 8)),
    "nonzero": (lambda x: x * x.detach().nonzero().shape[0], (3, 8)),
    "swapaxes": (lambda x: x.swapaxes(0, 1), (3, 8)),
    "T": (lambda x: x.T, (3, 8)),
    "mT": (lambda x: x.mT, (3, 8)),
    "type": (lambda x: x.double().float(), (3, 8)),
    "half": (lambda x: x.bfloat16().float(), (3, 8)),
    "checkpoint": (lambda x: checkpoint(torch.tanh, x, use_reentrant=False), (3, 8)),
}

READ: dict[str, Callable[[Any], Any]] = {
    "item sum": lambda x: x.sum().item(),
    "float mean": lambda x: float(x.mean()),
    "int sum": lambda x: int(x.sum() * 100),
    "bool": lambda x: bool(x.sum() > 0),
    "if any": lambda x: 2 if (x > 2.0).any() else 3,
    "if all": lambda x: 2 if (x > -1.2).all() else 3,
    "any item": lambda x: (x > 2.0).any().item(),
    "isnan any": lambda x: 2 if torch.isnan(x).any() else 3,
    "isfinite all": lambda x: 2 if torch.isfinite(x).all() else 3,
    "max item": lambda x: x.max().item(),
    "min item": lambda x: x.min().item(),
    "absmax": lambda x: x.abs().max().item(),
    "amax item": lambda x: x.amax().item(),
    "norm item": lambda x: x.norm().item(),
    "std item": lambda x: x.std().item(),
    "tolist": lambda x: x.sum(-1).tolist()[1],
    "tolist2": lambda x: x.tolist()[1][7],
    "numpy": lambda x: x.numpy()[1, 7],
    "numpy sum": lambda x: x.sum(-1).numpy()[1],
    "cpu numpy": lambda x: x.cpu().numpy().sum(),
    "__array__": lambda x: np.asarray(x).sum(),
    "item elem": lambda x: x[1, 7].item(),
    "item elem0": lambda x: x[1, 0].item(),
    "float elem": lambda x: float(x[2, 5]),
    "int argmax": lambda x: int(x.argmax()),
    "argmax item": lambda x: x[1].argmax().item(),
    "argmin": lambda x: int(x.argmin(-1)[0]),
    "count_nonzero": lambda x: (x > 0).count_nonzero().item(),
    "sum bool": lambda x: (x > 0).sum().item(),
    "sum bool dim": lambda x: (x > 0).sum(-1)[1].item(),
    "equal": lambda x: torch.equal(x, x * 1) + 1,
    "equal not": lambda x: torch.equal(x, torch.cat([x[:, :7], x[:, 7:] + 1], 1)) + 1,
    "allclose": lambda x: torch.allclose(x, x * 1) + 1,
    "allclose not": lambda x: torch.allclose(x, torch.cat([x[:, :7], x[:, 7:] + 1], 1)) + 1,
    "T.allclose": lambda x: x.allclose(x * 1) + 1,
    "T.equal": lambda x: x.equal(x * 1) + 1,
    "is_nonzero": lambda x: torch.is_nonzero(x.sum()) + 1,
    "contains": lambda x: (x.max() in x) + 1,
    "in": lambda x: (0 in (x * 0)) + 1,
    "len": len,
    "len sq": lambda x: len(x.T),
    "numel": lambda x: x.numel(),
    "index list": lambda x: [1, 2, 3, 4, 5, 6, 7, 8, 9][int(x.argmax()) % 9],
    "range": lambda x: len(range(int((x > 0).sum()))),
    "format": lambda x: float(f"{x.sum():.3f}"),
    "float str": lambda x: float(str(x.sum().item())),
    "any dim": lambda x: (x > 1).any(-1)[1].item() + 1,
    "all dim": lambda x: (x < 1).all(-1)[1].item() + 1,
    "T any": lambda x: torch.any(x > 2) + 1,
    "T all": lambda x: torch.all(x > -1.2) + 1,
    "any dim0": lambda x: (x > 1).any(0)[7].item() + 1,
    "median item": lambda x: x.median().item(),
    "mode": lambda x: x.mode()[0][0].item(),
    "unique": lambda x: len(x.unique()),
    "nonzero": lambda x: len(x.nonzero()),
    "where1": lambda x: len(torch.where(x > 0)[0]),
    "bincount": lambda x: torch.bincount((x > 0).flatten().long())[1].item(),
    "histc": lambda x: x.histc(4)[1].item(),
    "iter": lambda x: sum(float(r.sum()) for r in x),
    "iter cols": lambda x: sum(float(r[1]) for r in x.T),
    "zip": lambda x: [float(a) for a in x[0]][6],
    "std": lambda x: float(x.std(-1)[1]),
    "var_mean": lambda x: float(torch.var_mean(x)[0]),
    "prod": lambda x: float(x[0].prod()),
    "dot": lambda x: float(x[0] @ x[1]),
    "trace": lambda x: float((x.T @ x).trace()),
    "diag": lambda x: float((x.T @ x).diagonal().sum()),
    "det": lambda x: float(torch.linalg.det(x @ x.T)),
    "matrix_norm": lambda x: float(torch.linalg.matrix_norm(x)),
    "norm1": lambda x: float(x.norm(1)),
    "norminf": lambda x: float(x.norm(float("inf"))),
    "vnorm dim": lambda x: float(torch.linalg.vector_norm(x, dim=-1)[2]),
    "clip_grad style": lambda x: float(torch.stack([x.norm(), x.norm()]).norm()),
    "topk idx": lambda x: float(x.topk(2, -1)[1][0, 0]),
    "sort idx": lambda x: float(x.sort(-1)[1][0, 0]),
    "kth": lambda x: float(x.kthvalue(3, -1)[0][0]),
    "quantile": lambda x: float(x.quantile(0.3)),
    "cumsum last": lambda x: float(x.cumsum(-1)[0, -1]),
    "cummax": lambda x: float(x.cummax(-1)[0][0, -1]),
    "logsumexp": lambda x: float(x.logsumexp(-1)[1]),
    "multinomial": lambda x: float(torch.multinomial((x * 100).softmax(-1), 1)[0]),
    "deepcopy": lambda x: float(copy.deepcopy(x).sum()),
    "clone": lambda x: float(x.clone().sum()),
    "data": lambda x: float(x.data.sum()),
    "to list": lambda x: float(x.to(torch.float64).sum()),
    "stride": lambda x: x.stride(0),
    "size": lambda x: x.size(-1),
    "nbytes": lambda x: x.nbytes,
    "storage": lambda x: x.untyped_storage().nbytes(),
    "is_contig": lambda x: x.is_contiguous(),
    "eq sum": lambda x: (x == x.clone()).sum().item(),
    "isin": lambda x: torch.isin(x, x[0]).sum().item(),
    "sum(sum)": lambda x: float(sum(x.sum(0))),
    "max builtin": lambda x: float(max(x[0])),
    "sorted": lambda x: float(sorted(x[0])[0]),
    "abs": lambda x: float(abs(x.sum())),
    "cmp chain": lambda x: 2 if 0 < x.abs().sum() < 100 else 3,
    "not": lambda x: 2 if not (x > 5).any() else 3,
    "and": lambda x: 2 if (x.sum() > 0 and x.mean() > 0) else 3,
    "assert": lambda x: 1 if (x.abs() < 5).all() else 0,
    "signal": lambda x: float(x.sum().sign()),
    "logical": lambda x: float(torch.logical_and(x > 0, x < 1).sum()),
    "aminmax": lambda x: float(torch.aminmax(x)[1]),
    "max0": lambda x: float(torch.max(x)),
    "max dim item": lambda x: x.max(-1)[1][0].item(),
    "max dim value": lambda x: x.max(-1)[0][0].item(),
    "min dim": lambda x: x.min(-1).values[2].item(),
    "amin": lambda x: x.amin(-1)[2].item(),
    "std corr": lambda x: x.std(unbiased=False).item(),
    "mean dims": lambda x: x.mean((0, 1)).item(),
}


def difference(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> str:
    """What is otherwise on parts; nothing where all is as on the whole."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

    def cut(x: Tensor) -> Tensor:
        assert isinstance(x, DTensor)
        return function(x.redistribute(placements=[Shard(1)]))

    ours, usual = (numbers(*shape).requires_grad_() for _ in range(2))
    torch.manual_seed(0)
    wanted = function(usual)
    torch.manual_seed(0)
    try:
        found = Border(mesh).around(cut)(ours)
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)
        for outputs in (found, wanted):
            (outputs * numbers(*wanted.shape)).sum().backward()
        torch.testing.assert_close(ours.grad, usual.grad, atol=1e-5, rtol=1e-4)
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def times(read: Callable[[Tensor], Any]) -> Callable[[Tensor], Tensor]:
    """A layer that multiplies with what Python reads from its input."""
    return lambda x: x * float(read(x.detach()))


def otherwise_computed() -> dict[str, str]:
    found = {name: difference(*case) for name, case in COMPUTED.items()}
    return {name: what for name, what in found.items() if what}


def otherwise_read() -> dict[str, str]:
    found = {name: difference(times(read), (3, 8)) for name, read in READ.items()}
    return {name: what for name, what in found.items() if what}


def test_functions_of_torch_compute_the_same() -> None:
    assert world(2).run(otherwise_computed) == [{}, {}]


def test_python_reads_the_same_n() -> None:
    assert world(2).run(otherwise_read) == [{}, {}]
