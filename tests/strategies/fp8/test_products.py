"""A product in float8 is that of float32 within float8's digits, forward and backward."""

import math
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fleetx.strategies.fp8 import casting, products
from fleetx.strategies.fp8.products import linear
from tests.rotation import rotating
from tests.strategies.fp8.stand_in import multiplied, needs_kernel

WAYS = [False, True]
E4M3, E5M2 = 0.05, 0.09
"""What a product may be off by, of two e4m3 factors and of one in e5m2."""
SHAPES = [(32, 64), (3, 5, 64), (7, 64), (64,), (1, 64)]


@pytest.fixture(autouse=True)
def _has_kernel(request: pytest.FixtureRequest) -> None:
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    needs_kernel(by_row=parameters.get("by_row", False))


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 48, bias=bias)


def off(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach(), wanted.detach()
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


def gradients(output: Tensor, of: list[Tensor], given: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(output, of, given)


@pytest.mark.parametrize("by_row", WAYS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_and_its_gradients(shape: tuple[int, ...], by_row: bool) -> None:
    ours, x = layer(), drawn(*shape).requires_grad_()
    found, wanted = linear(x, ours.weight, ours.bias, by_row=by_row), ours(x)
    assert found.shape == wanted.shape
    assert found.dtype == torch.float32
    assert 0 < off(found, wanted) < E4M3
    given, of = drawn(*wanted.shape), [x, ours.weight, ours.bias]
    both = zip(gradients(found, of, given), gradients(wanted, of, given), strict=True)
    (of_x, of_weight, of_bias) = [off(mine, theirs) for mine, theirs in both]
    assert 0 < of_x < E5M2
    assert of_weight < E5M2
    assert of_bias < 1e-6


@pytest.mark.parametrize("by_row", WAYS)
def test_kernels_get_what_those_of_gpus_take(by_row: bool) -> None:
    """Rows of the first and columns of the second in memory, sizes that are multiples of 16."""
    ours, x = layer(), drawn(7, 64).requires_grad_()
    with multiplied() as products:
        linear(x, ours.weight, ours.bias, by_row=by_row).sum().backward()
    assert len(products) == 3
    kinds = [(first.dtype, second.dtype) for first, second, _ in products]
    assert kinds == [
        (torch.float8_e4m3fn, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e4m3fn),
        (torch.float8_e5m2, torch.float8_e4m3fn),
    ]
    for first, second, more in products:
        assert first.is_contiguous()
        assert second.t().is_contiguous()
        assert not any(size % 16 for size in (*first.shape, *second.shape))
        rows, columns = (first.shape[0], 1), (1, second.shape[1])
        assert more["scale_a"].shape == (rows if by_row else ())
        assert more["scale_b"].shape == (columns if by_row else ())
        assert more["scale_a"].dtype == more["scale_b"].dtype == torch.float32
        if by_row:
            assert more["out_dtype"] == torch.bfloat16, "kernels with such scales return no other"


@pytest.mark.parametrize("by_row", WAYS)
def test_scales_bring_the_largest_magnitude_to_the_largest_number(by_row: bool) -> None:
    ours, x = layer(), drawn(16, 64, scale=1e-3)
    x[3] *= 1e6
    with multiplied() as products, torch.no_grad():
        found = linear(x, ours.weight, None, by_row=by_row)
    numbers = products[0][0].float().abs()
    most = numbers.amax(1) if by_row else numbers.amax()
    assert torch.equal(most, torch.full_like(most, 448.0))
    wanted = F.linear(x, ours.weight)
    rest = [row for row in range(16) if row != 3]
    # One scale for all leaves nothing of rows that are a million times as small.
    assert off(found[3], wanted[3]) < E4M3
    assert (off(found[rest], wanted[rest]) < E4M3) == by_row


@pytest.mark.parametrize("by_row", WAYS)
def test_zeros_give_zeros(by_row: bool) -> None:
    ours, x = layer(bias=False), torch.zeros(16, 64, requires_grad=True)
    found = linear(x, ours.weight, None, by_row=by_row)
    found.backward(torch.zeros_like(found))
    assert x.grad is not None
    assert ours.weight.grad is not None
    for each in (found, x.grad, ours.weight.grad):
        assert torch.equal(each, torch.zeros_like(each))


@pytest.mark.parametrize("by_row", WAYS)
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_magnitudes_far_from_one(scale: float, by_row: bool) -> None:
    ours, x = layer(bias=False), drawn(16, 64, scale=scale)
    found, wanted = linear(x, ours.weight, None, by_row=by_row), ours(x)
    assert off(found / scale, wanted / scale) < E4M3


@pytest.mark.parametrize("by_row", WAYS)
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_so(bad: float, by_row: bool) -> None:
    """So that whoever scales a loss sees that it was too large."""
    ours, x = layer(), drawn(16, 64).requires_grad_()
    given = drawn(16, 48)
    given[2, 3] = bad
    linear(x, ours.weight, ours.bias, by_row=by_row).backward(given)
    assert ours.weight.grad is not None
    assert not ours.weight.grad.isfinite().all()
    spoilt = drawn(16, 64)
    spoilt[2, 3] = bad
    assert not linear(spoilt, ours.weight, ours.bias, by_row=by_row)[2].isfinite().any()


@pytest.mark.parametrize("by_row", WAYS)
def test_inputs_that_lie_otherwise_in_memory(by_row: bool) -> None:
    ours = layer()
    x = drawn(64, 4, 16).permute(2, 1, 0)
    again = linear(x.contiguous(), ours.weight, ours.bias, by_row=by_row)
    assert torch.equal(linear(x, ours.weight, ours.bias, by_row=by_row), again)


@pytest.mark.parametrize("by_row", WAYS)
def test_no_samples(by_row: bool) -> None:
    ours = layer()
    found = linear(torch.zeros(0, 64), ours.weight, ours.bias, by_row=by_row)
    assert found.shape == (0, 48)
    found.sum().backward()
    assert ours.weight.grad is not None


@pytest.mark.parametrize("by_row", WAYS)
def test_only_gradients_that_somebody_wants_are_computed(by_row: bool) -> None:
    ours = layer()
    with multiplied() as products:
        linear(drawn(16, 64), ours.weight, None, by_row=by_row).sum().backward()
        assert len(products) == 2
        ours.weight.requires_grad_(False)
        ours.weight.grad = None
        x = drawn(16, 64).requires_grad_()
        linear(x, ours.weight, None, by_row=by_row).sum().backward()
    assert len(products) == 4
    assert x.grad is not None
    assert ours.weight.grad is None


@pytest.mark.parametrize("by_row", WAYS)
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_under_autocast_outputs_have_its_format_and_weights_theirs(
    low: torch.dtype, by_row: bool
) -> None:
    ours, x = layer(), drawn(16, 64).requires_grad_()
    with torch.autocast("cpu", dtype=low):
        found, wanted = linear(x, ours.weight, ours.bias, by_row=by_row), ours(x)
    assert found.dtype == wanted.dtype == low
    assert off(found, wanted) < E4M3
    found.sum().backward()
    assert ours.weight.grad is not None
    assert ours.weight.grad.dtype == torch.float32
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(16, 64), (3, 5, 64)])
def test_the_kernel_adds_a_bias_of_16_bits_itself(shape: tuple[int, ...], low: torch.dtype) -> None:
    ours, x = layer(), drawn(*shape)
    nn.init.normal_(ours.bias, std=100)  # so that nobody overlooks it
    with torch.autocast("cpu", dtype=low, enabled=low != torch.float32), multiplied() as products:
        found, wanted = linear(x, ours.weight, ours.bias, by_row=False), ours(x)
        ((_, _, more),) = products
    assert (more["bias"] is not None) == (low != torch.float32)
    assert off(found, wanted) < E4M3 / 10
    given = drawn(*wanted.shape).to(low)
    mine, theirs = (gradients(each, [ours.bias], given)[0] for each in (found, wanted))
    assert mine.dtype == theirs.dtype == torch.float32
    assert off(mine, theirs) < 0.01


def test_inputs_wait_for_the_backward_in_one_byte_each_and_the_weight_as_it_is() -> None:
    ours, x = layer(), drawn(32, 64).requires_grad_()
    kept = list[Tensor]()

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        linear(x, ours.weight, None, by_row=False)
    large = {tensor.data_ptr(): tensor for tensor in kept if tensor.numel() > 1}
    assert ours.weight.data_ptr() in large
    (inputs,) = [t for pointer, t in large.items() if pointer != ours.weight.data_ptr()]
    # By columns, as the gradient of the weight needs them.
    assert (inputs.dtype, tuple(inputs.shape)) == (torch.float8_e4m3fn, (64, 32))


@pytest.mark.parametrize("by_row", WAYS)
def test_evaluation_copies_nothing_for_a_backward(
    by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = list[Tensor]()

    def copy(matrix: Tensor, *more: Any) -> Any:
        copied.append(matrix)
        return casting.cast_both(matrix, *more)

    monkeypatch.setattr(products, "cast_both", copy)
    ours = layer()
    with torch.no_grad():
        linear(drawn(32, 64), ours.weight, None, by_row=by_row)
    linear(drawn(32, 64), ours.weight.detach(), None, by_row=by_row)
    assert not copied
    linear(drawn(32, 64), ours.weight, None, by_row=by_row)
    assert len(copied) == (0 if by_row else 1)


@pytest.mark.parametrize("by_row", WAYS)
def test_the_output_may_be_written_to(by_row: bool) -> None:
    """As that of torch's layer: blocks add to it in place."""
    ours, x = layer(bias=False), drawn(7, 64).requires_grad_()
    found = linear(x, ours.weight, None, by_row=by_row)
    assert not found._is_view()
    found += 1
    found.sum().backward()
    assert x.grad is not None


CALLED: list[tuple[str, tuple[int, ...]]] = []
"""The calls of the kernels that stand in for those of a card, which torch cannot look into."""


def _lying(matrix: Tensor, name: str) -> Tensor:
    """As a card's kernel reads it, which takes rows for what lies together."""
    CALLED.append((name, tuple(matrix.shape)))
    return matrix.as_strided(matrix.shape, (matrix.stride(0), 1))


def _kind(wide: bool) -> torch.dtype:
    return torch.float8_e5m2 if wide else torch.float8_e4m3fn


@torch.library.custom_op("fleetx_tests::largest", mutates_args=())
def largest(matrix: Tensor) -> Tensor:
    return _lying(matrix, "largest").abs().amax()


@torch.library.custom_op("fleetx_tests::cast_rows", mutates_args=())
def cast_rows(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    given = _lying(matrix, "rows")
    return casting.rounded(given, _kind(wide), factor).view(torch.uint8).contiguous()


@torch.library.custom_op("fleetx_tests::cast_columns", mutates_args=())
def cast_columns(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    given = _lying(matrix, "columns")
    return casting.rounded(given, _kind(wide), factor).view(torch.uint8).t().contiguous()


@torch.library.custom_op("fleetx_tests::cast_both", mutates_args=())
def cast_both(
    matrix: Tensor, factor: Tensor, wide: bool, summed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    given = _lying(matrix, "both")
    found = casting.rounded(given, _kind(wide), factor).view(torch.uint8)
    sums = given.float().sum(0, keepdim=True)
    # A card leaves there what it found, unless they are wanted.
    return found.contiguous(), found.t().contiguous(), sums if summed else sums * math.nan


def _bytes(matrix: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.uint8, device=matrix.device)


largest.register_fake(lambda matrix: matrix.new_empty(()))
cast_rows.register_fake(lambda matrix, factor, wide: _bytes(matrix, *matrix.shape))
cast_columns.register_fake(lambda matrix, factor, wide: _bytes(matrix, *matrix.shape[::-1]))


@cast_both.register_fake
def _(matrix: Tensor, factor: Tensor, wide: bool, summed: bool) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = matrix.shape
    made = _bytes(matrix, rows, columns), _bytes(matrix, columns, rows)
    return *made, matrix.new_empty((1, columns), dtype=torch.float32)


OWN = {own._name: own for own in (largest, cast_rows, cast_columns, cast_both)}


def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, own in casting.trusted(OWN, torch.device("cpu")).items():
        monkeypatch.setitem(casting.kernels, key, own)


def _wrong_in_one_format(
    matrix: Tensor, factor: Tensor, wide: bool, summed: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """As Triton compiled one: only for float32, and only the numbers by columns."""
    rows, columns, sums = cast_both(matrix, factor, wide, summed)
    if matrix.dtype == torch.float32 and wide:
        columns[7, 9] += 1
    return rows, columns, sums


def _wrong_at_edges(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    """Triton makes other code for rows that are no multiples of 16."""
    found = cast_columns(matrix, factor, wide)
    found[-1, -1] += matrix.shape[0] % 16 > 0
    return found


def _swapped(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, sums = cast_both(*given)
    return columns.view(rows.shape), rows.view(columns.shape), sums


def _without_sums(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns, sums = cast_both(*given)
    return rows, columns, torch.zeros_like(sums)


def _loses_nan(matrix: Tensor, factor: Tensor, wide: bool) -> Tensor:
    return cast_rows(matrix.nan_to_num(nan=0.0), factor, wide)


def _finds_none(matrix: Tensor) -> Tensor:
    return largest(matrix.nan_to_num(nan=0.0))


def _does_not_compile(*given: Any) -> Tensor:
    raise ZeroDivisionError("no compiler\nand more of it")


ALL = set(casting.FORMATS)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines about kernels; threads of other tests may have more to say."""
    return [record.getMessage() for record in caplog.records if record.name == casting.__name__]


@pytest.mark.parametrize(
    ("name", "own", "refused", "reason"),
    [
        ("cast_both", _wrong_in_one_format, {torch.float32}, "it is wrong here"),
        ("cast_both", _swapped, ALL, "it is wrong here"),
        ("cast_both", _without_sums, ALL, "it is wrong here"),
        ("cast_columns", _wrong_at_edges, ALL, "it is wrong here"),
        ("cast_rows", _loses_nan, ALL, "it is wrong here"),
        ("largest", _finds_none, ALL, "it is wrong here"),
        ("cast_columns", _does_not_compile, ALL, r"ZeroDivisionError: no compiler"),
    ],
)
def test_kernels_that_are_wrong_here_are_left_out(
    name: str, own: Any, refused: set[torch.dtype], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    before = torch.get_rng_state()
    with caplog.at_level("INFO"):
        found = casting.trusted(OWN | {name: own}, torch.device("cpu"))
    missing = {("cpu", each, dtype) for each in OWN for dtype in ALL} - set(found)
    assert missing == {("cpu", name, dtype) for dtype in refused}
    assert [reason in line for line in said(caplog)] == [True] * len(refused)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_kernels_are_tried_whatever_the_default_is(dtype: torch.dtype) -> None:
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = casting.trusted(OWN, torch.device("cpu"))
    finally:
        torch.set_default_dtype(usual)
    assert len(found) == len(OWN) * len(ALL)


def test_no_kernel_is_asked_for_sizes_at_which_none_was_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*given: Any) -> Tensor:
        raise AssertionError(f"asked for {given[0].shape}")

    for name in OWN:
        monkeypatch.setitem(casting.kernels, ("cpu", name, torch.float32), fails)
    factor, odd = torch.tensor(2.0), drawn(32, 41)
    for matrix in (odd, odd.t()):
        assert torch.equal(casting.largest(matrix), matrix.abs().amax())
        wanted = casting.rounded(matrix, torch.float8_e5m2, factor).float()
        rows, columns, sums = casting.cast_both(matrix, torch.float8_e5m2, factor, summed=True)
        assert torch.equal(rows.float(), wanted)
        assert torch.equal(columns.float(), wanted.t())
        assert sums is not None
        assert torch.allclose(sums, matrix.sum(0))
        assert torch.equal(casting.cast(matrix, torch.float8_e5m2, factor).float(), wanted)


def test_a_triton_that_cannot_be_loaded_leaves_rounding_to_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(casting, "_looked", set())
    monkeypatch.setattr(casting, "has_kernels", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "fleetx.strategies.fp8.casting_kernels", raising=False)
    casting.load_kernels(torch.device("cuda"))
    casting.load_kernels(torch.device("cuda"))  # looked at once
    (line,) = said(caplog)
    assert "no kernel for rounding works here" in line
    assert "triton" in line
    assert not [key for key in casting.kernels if key[0] == "cuda"]


def test_a_device_where_no_kernel_works_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert not casting.trusted({"largest": _does_not_compile}, torch.device("cpu"))
    assert "fp8: no kernel for rounding works here" in caplog.text


@pytest.mark.parametrize("by_columns", [False, True], ids=["rows", "columns"])
def test_kernels_of_a_card_cast_in_compiled_code_too(
    monkeypatch: pytest.MonkeyPatch, by_columns: bool
) -> None:
    weight, x = layer().weight.detach(), drawn(32, 64)
    if by_columns:  # weights of Conv1D in transformers, and inputs that were transposed
        weight, x = (each.t().contiguous().t() for each in (weight, x))
    weight, x = weight.requires_grad_(), x.to(torch.bfloat16).requires_grad_()
    bias = drawn(48).requires_grad_()

    def gradients(run: Any) -> tuple[Tensor, ...]:
        found = run(x, weight, bias, by_row=False)
        return torch.autograd.grad(found.square().sum(), [x, weight, bias])

    expected = gradients(linear)
    _stand_in(monkeypatch)
    torch._dynamo.reset()
    compiled = torch.compile(linear, backend="aot_eager", fullgraph=True)
    inputs, weights = ((64, 32), (64, 48)) if by_columns else ((32, 64), (48, 64))
    each = ("columns", "rows") if by_columns else ("rows", "columns")
    calls = [("both", inputs), ("both", (32, 48)), (each[0], weights), (each[1], weights)]
    calls += [("largest", shape) for shape in (inputs, weights, (32, 48))]
    for run in (linear, compiled):
        CALLED.clear()
        for found, usual in zip(gradients(run), expected, strict=True):
            assert torch.equal(found, usual)
        assert sorted(CALLED) == sorted(calls)
    torch._dynamo.reset()


@pytest.mark.parametrize("strides", [(0, 0), (0, 1), (1, 0), (128, 2), (2, 128)])
def test_kernels_take_matrices_that_lie_in_any_way(
    monkeypatch: pytest.MonkeyPatch, strides: tuple[int, int]
) -> None:
    """As the gradients of sums, of means, and of outputs of which every other one counts."""
    matrix = drawn(64, 128).as_strided((32, 64), strides)
    _stand_in(monkeypatch)
    kind, factor = torch.float8_e4m3fn, torch.tensor(3.0)
    wanted = casting.rounded(matrix, kind, factor).float()
    assert torch.equal(casting.largest(matrix), matrix.abs().amax())
    assert torch.equal(casting.cast(matrix, kind, factor).float(), wanted)
    assert torch.equal(casting.cast_columns(matrix, kind, factor).float(), wanted.t())
    rows, columns, sums = casting.cast_both(matrix, kind, factor, summed=True)
    assert torch.equal(rows.float(), wanted)
    assert torch.equal(columns.float(), wanted.t())
    assert sums is not None
    torch.testing.assert_close(sums, matrix.sum(0))


@pytest.mark.parametrize("by_row", rotating(WAYS, 4))
def test_it_is_compiled_in_one_piece_and_means_the_same(by_row: bool) -> None:
    ours, x, seen = layer(), drawn(16, 64).requires_grad_(), list[Any]()

    def backend(module: Any, inputs: Any) -> Any:
        seen.append(module)
        return torch._dynamo.lookup_backend("aot_eager")(module, inputs)

    def call(x: Tensor) -> Tensor:
        return linear(x, ours.weight, ours.bias, by_row=by_row)

    torch._dynamo.reset()
    compiled = torch.compile(call, backend=backend, fullgraph=True)
    given, of = drawn(16, 48), [x, ours.weight, ours.bias]
    found = compiled(x)
    assert len(seen) == 1
    assert torch.equal(found, call(x))
    both = zip(gradients(found, of, given), gradients(call(x), of, given), strict=True)
    assert all(torch.equal(mine, theirs) for mine, theirs in both)
    torch._dynamo.reset()


def test_gradients_of_gradients_are_refused() -> None:
    ours, x = layer(), drawn(16, 64).requires_grad_()
    found = linear(x, ours.weight, ours.bias, by_row=False)
    (of_x,) = torch.autograd.grad((found**2).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        of_x.sum().backward()


@pytest.mark.rare
@pytest.mark.parametrize("by_row", WAYS)
def test_the_bits_are_those_of_torchao(by_row: bool) -> None:
    """Which is no dependency: transformers loads it wherever it is, and that takes seconds."""
    torchao = pytest.importorskip("torchao.float8")
    kinds = pytest.importorskip("torchao.float8.config")
    each = "AXISWISE" if by_row else "TENSORWISE"
    casts = {
        "scaling_granularity": getattr(kinds.ScalingGranularity, each),
        "target_dtype": torch.float8_e4m3fn,
    }
    forward = kinds.CastConfig(**casts)
    backward = kinds.CastConfig(**casts | {"target_dtype": torch.float8_e5m2})
    options = {f"gemm_config_{name}": by_row for name in ("grad_input", "grad_weight")}
    config = torchao.Float8LinearConfig(
        cast_config_input=forward,
        cast_config_weight=forward,
        cast_config_grad_output=backward,
        **{name: kinds.Float8GemmConfig(use_fast_accum=on) for name, on in options.items()},
    )
    ours, x, given = layer(), drawn(32, 64).requires_grad_(), drawn(32, 48)
    theirs = torchao.convert_to_float8_training(nn.Sequential(layer()), config=config)
    found, wanted = linear(x, ours.weight, ours.bias, by_row=by_row), theirs(x)
    assert torch.equal(found, wanted)
    mine = gradients(found, [x, *ours.parameters()], given)
    others = gradients(wanted, [x, *theirs.parameters()], given)
    assert all(torch.equal(one, other) for one, other in zip(mine, others, strict=True))
