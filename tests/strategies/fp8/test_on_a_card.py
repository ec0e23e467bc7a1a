"""float8 on a GPU that has it: kernels, real text, compiled and captured steps."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.graph.float8_devices import without_float8
from fleetx.strategies.fp8.casting import (
    FORMATS,
    cast,
    cast_both,
    cast_columns,
    kernels,
    largest,
    load_kernels,
    rounded,
)
from fleetx.strategies.fp8.products import linear
from tests.plan.measured import Block

HAS_FLOAT8 = torch.cuda.is_available() and not without_float8(torch.device("cuda"))
pytestmark = pytest.mark.skipif(not HAS_FLOAT8, reason="needs a GPU of the Hopper generation")
TEXT = Path(__file__).parents[3] / "docs"
LENGTH, BATCH = 128, 32


@pytest.fixture(autouse=True, scope="module")
def _kernels() -> None:
    """Without them, torch would be compared with itself."""
    load_kernels(torch.device("cuda"))
    names = "largest", "cast_rows", "cast_columns", "cast_both"
    wanted = {("cuda", name, dtype) for name in names for dtype in FORMATS}
    # Triton 3.6 miscompiles this one.
    assert wanted - {*kernels} <= {("cuda", "cast_both", torch.float32)}


class Reader(nn.Module):
    """A small GPT over bytes."""

    def __init__(self, width: int = 256, blocks: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(256, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found


def criterion(scores: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def text() -> Tensor:
    """The pages of the documentation, byte by byte."""
    found = b"".join(page.read_bytes() for page in sorted(TEXT.rglob("*.md")))
    return torch.frombuffer(bytearray(found), dtype=torch.uint8)


def losses(updates: int, **settings: Any) -> list[float]:
    strategy = fleet.DistributedStrategy()
    strategy.amp = True
    strategy.amp_configs = {"dtype": "bfloat16"}
    for name, value in settings.items():
        setattr(strategy, name, value)
    fleet.init(is_collective=True, strategy=strategy)
    try:
        model: Any = fleet.distributed_model(Reader().to("cuda"), criterion=criterion)
        fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
        known, generator = text(), torch.Generator().manual_seed(1)
        found = []
        for _ in range(updates):
            starts = torch.randint(len(known) - LENGTH, (BATCH, 1), generator=generator)
            tokens = known[starts + torch.arange(LENGTH)].long().to("cuda")
            found.append(model.train_batch((tokens, tokens)).detach().clone())
        return torch.stack(found).tolist()
    finally:
        roles.stop()
        torch._dynamo.reset()


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.fixture(scope="module")
def usual() -> list[float]:
    """Of bfloat16 alone."""
    return losses(200)


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_real_text_is_learnt_as_in_bfloat16(scales: str, usual: list[float]) -> None:
    found = losses(200, fp8=True, fp8_configs={"scales": scales})
    assert usual[-1] < 0.6 * usual[0]
    assert mean(found[-50:]) == pytest.approx(mean(usual[-50:]), rel=0.01)


@pytest.mark.parametrize("scales", ["tensor", "row"])
def test_compiled_and_captured(scales: str, usual: list[float]) -> None:
    """A captured step waits for nothing, so nothing in it asks the device for a scale."""
    company: dict[str, Any] = {"compile": True, "compile_configs": {"fullgraph": True}}
    found = losses(200, fp8=True, fp8_configs={"scales": scales}, cuda_graph=True, **company)
    assert mean(found[-50:]) == pytest.approx(mean(usual[-50:]), rel=0.01)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [256, 7])
@pytest.mark.parametrize("by_columns", [False, True])
def test_kernels(by_columns: bool, rows: int, low: torch.dtype, by_row: bool) -> None:
    torch.manual_seed(0)
    ours = nn.Linear(512, 384, device="cuda")
    if by_columns:  # as Conv1D of transformers has its weight
        ours.weight = nn.Parameter(ours.weight.detach().t().contiguous().t())
    x = torch.randn(rows, 512, device="cuda", dtype=low, requires_grad=True)
    with torch.autocast("cuda", dtype=low, enabled=low != torch.float32):
        found, wanted = linear(x, ours.weight, ours.bias, by_row=by_row), ours(x)
    assert found.dtype == wanted.dtype == low
    given, of = torch.randn_like(wanted), [x, ours.weight, ours.bias]
    mine, theirs = (torch.autograd.grad(each, of, given) for each in (found, wanted))
    both = zip((found, *mine), (wanted, *theirs), strict=True)
    for one, other in both:
        assert one.dtype == other.dtype
        assert float((one - other).detach().float().norm() / other.detach().float().norm()) < 0.09


@pytest.mark.parametrize("shape", [(16, 16), (128, 256), (272, 1040), (16384, 48), (1, 7)])
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("low", [torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_rounded_as_torch_does(
    shape: tuple[int, int], kind: torch.dtype, low: torch.dtype
) -> None:
    torch.manual_seed(0)
    drawn = partial(torch.randn, device="cuda", dtype=low)
    matrix, by_columns = drawn(shape), drawn(shape[::-1]).t()
    wide, row = drawn(shape[0], shape[1] + 32)[:, 16:-16], drawn(1, shape[1])
    for each in (matrix, wide, by_columns, row.expand(shape), row[:, :1].expand(shape)):
        assert torch.equal(largest(each), each.abs().amax().float())
        # Some become subnormal, and some lie beyond the format.
        factor = 4 * torch.finfo(kind).max / largest(each) / torch.finfo(kind).max ** 0.5
        for scale in (factor, factor * 1e-3, factor * 1e6):
            wanted = rounded(each, kind, scale)
            rows, columns, sums = cast_both(each, kind, scale, summed=True)
            assert sums is not None
            torch.testing.assert_close(sums, each.float().sum(0).to(low), rtol=0.01, atol=0.01)
            for found in (rows, cast(each, kind, scale)):
                assert (found.dtype, found.is_contiguous()) == (kind, True)
                assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
            for found in (columns, cast_columns(each, kind, scale)):
                assert (found.dtype, found.is_contiguous()) == (kind, True)
                assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8).t())


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("low", FORMATS)
def test_what_is_no_number_stays_none(low: torch.dtype, bad: float, kind: torch.dtype) -> None:
    """Otherwise nobody would notice that a gradient has overflowed."""
    matrix = torch.randn(64, 160, device="cuda", dtype=low)
    matrix[17, 140] = bad
    assert torch.equal(largest(matrix).isfinite(), torch.tensor(False, device="cuda"))
    ours = nn.Linear(160, 32, device="cuda")
    found = linear(matrix, ours.weight, ours.bias, by_row=False)
    assert not found[17].isfinite().any()
    rows, columns, _ = cast_both(matrix, kind, torch.zeros((), device="cuda"))
    assert rows[17, 140].float().isnan()
    assert columns[140, 17].float().isnan()


@pytest.mark.parametrize("by_row", [False, True])
def test_nobody_waits_for_the_device(by_row: bool) -> None:
    ours = nn.Linear(64, 64, device="cuda")
    x = torch.randn(16, 64, device="cuda", requires_grad=True)
    linear(x, ours.weight, ours.bias, by_row=by_row).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        linear(x, ours.weight, ours.bias, by_row=by_row).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
