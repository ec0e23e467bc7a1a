"""What a graph could only get wrong is refused, with the user's line and what to do."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from fleetx.strategies.pipeline import parts, trace
from tests.strategies.pipeline.models import Block, all_whole, check, followed, run_all


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x**2


X = {"x": torch.randn(3, 3)}


class Model(nn.Module):
    """Runs a piece of code between two layers."""

    mean: Tensor
    count: Tensor

    def __init__(self, code: Callable[["Model", Tensor], Tensor]) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.tensor(0))
        self.plain = torch.ones(3)
        self.tensors = [torch.ones(3)]
        self.seen: list[Any] = []
        self.memory: dict[str, Any] = {}
        self.calls = 0
        self.code = code

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.code(self, self.one(x)))


def by_value(model: Model, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def by_size(model: Model, x: Tensor) -> Tensor:
    if x.size(0) > 2:
        return -x
    return x


def item(model: Model, x: Tensor) -> Tensor:
    return x * x.max().item()


def number(model: Model, x: Tensor) -> Tensor:
    return x * float(x.max())


def integer(model: Model, x: Tensor) -> Tensor:
    return x * int(x.size(0))


def length(model: Model, x: Tensor) -> Tensor:
    return x * len(x)


def loop(model: Model, x: Tensor) -> Tensor:
    return torch.stack([row * 2 for row in x])


def counted_loop(model: Model, x: Tensor) -> Tensor:
    for _ in range(x.size(0)):
        x = x + 1
    return x


def star(model: Model, x: Tensor) -> Tensor:
    return x.reshape(*x.shape)


def kind(model: Model, x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else x[0]


def kind_by_torch(model: Model, x: Any) -> Tensor:
    return x if torch.is_tensor(x) else x[0]


def old_constructor(model: Model, x: Tensor) -> Tensor:
    return x + torch.FloatTensor([1.0])


def from_array(model: Model, x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.ones(3, dtype=np.float32))


def in_a_list(model: Model, x: Tensor) -> Tensor:
    return x + model.tensors[0]


def without_gradients(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


def layer_without_gradients(model: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model.one(x)


def autograd_function(model: Model, x: Tensor) -> Tensor:
    return Cube.apply(x)  # type: ignore[no-untyped-call]


def half(model: Model, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        x = x @ x.t() @ x
    return x.float()


def other_kernels(model: Model, x: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.MATH):
        return F.scaled_dot_product_attention(x, x, x)


def other_format(model: Model, x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float64)
    try:
        return (x * torch.ones(3)).to(x.dtype)
    finally:
        torch.set_default_dtype(torch.float32)


def kept(model: Model, x: Tensor) -> Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=False)


def kept_reentrant(model: Model, x: Tensor) -> Tensor:
    return checkpoint(torch.tanh, x, use_reentrant=True)


def new_buffer(model: Model, x: Tensor) -> Tensor:
    model.mean = x.detach().mean(0)
    return x - model.mean


def counter(model: Model, x: Tensor) -> Tensor:
    model.calls += 1
    return x


def add_to_counter(model: Model, x: Tensor) -> Tensor:
    model.count += 1
    return x


def append(model: Model, x: Tensor) -> Tensor:
    model.seen.append(x)
    return x


def keep(model: Model, x: Tensor) -> Tensor:
    model.memory["x"] = x
    return x


def behind_the_back(model: Model, x: Tensor) -> Tensor:
    model.__dict__["calls"] = 1
    return x


def deleted(model: Model, x: Tensor) -> Tensor:
    del model.mean
    return x


def parameter_in_place(model: Model, x: Tensor) -> Tensor:
    return x * model.weight.clamp_(0, 1)


def buffer_in_place(model: Model, x: Tensor) -> Tensor:
    model.mean[0].add_(1)
    return x


def buffer_item(model: Model, x: Tensor) -> Tensor:
    model.mean[0] = 1.0
    return x


def buffer_out(model: Model, x: Tensor) -> Tensor:
    torch.add(x[0], 1, out=model.mean)
    return x


def plain_in_place(model: Model, x: Tensor) -> Tensor:
    model.plain.add_(1)
    return x


def plain_item(model: Model, x: Tensor) -> Tensor:
    return x * model.plain.sum().item()


def functional_in_place(model: Model, x: Tensor) -> Tensor:
    return x * F.relu(model.weight, True)


def data_of_a_value(model: Model, x: Tensor) -> Tensor:
    x.data = torch.zeros(3)
    return x


def shape_in_place(model: Model, x: Tensor) -> Tensor:
    return x.unsqueeze_(0)


def new_layer(model: Model, x: Tensor) -> Tensor:
    return nn.ReLU()(x)


HIDDEN = nn.Linear(3, 3)


def hidden_layer(model: Model, x: Tensor) -> Tensor:
    return HIDDEN(x)


def layer_as_argument(model: Model, x: Tensor) -> Tensor:
    return apply(model.one, x)


@torch.fx.wrap
def apply(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x)


def own_error(model: Model, x: Tensor) -> Tensor:
    raise RuntimeError("out of order")


WITH_LINE: dict[Callable[[Model, Tensor], Tensor], str] = {
    by_value: "__bool__ needs the numbers",
    item: "item needs the numbers",
    number: "__float__ needs the numbers",
    loop: "a loop over dimension 0",
    old_constructor: "a tensor is used that was made at once",
    from_array: "a tensor is used that was made at once",
    in_a_list: "a tensor is used that was made at once",
    autograd_function: "a AutogradOperator is called that is no submodule",
    other_kernels: "the kernels of attention are switched",
    other_format: "the default dtype is switched",
    add_to_counter: "'count' of the model is changed in place",
    parameter_in_place: "in-place operation",
    buffer_in_place: "'mean' of the model is changed in place",
    buffer_item: "'mean' of the model is changed in place",
    buffer_out: "functions with out=",
    plain_in_place: "'plain' of the model is changed in place",
    plain_item: "item needs the numbers",
    functional_in_place: "in-place operation",
    data_of_a_value: "the attribute 'data' of a variable was assigned",
    new_layer: "a ReLU is called that is no submodule",
    hidden_layer: "a Linear is called that is no submodule",
    own_error: r"fails with RuntimeError \(out of order\)",
}
WITHOUT_LINE = {
    new_buffer: "'mean' of the model is changed in place",
    counter: "the forward changes 'calls' of the model",
    append: "the forward changes 'seen' of the model",
    keep: "the forward changes 'memory' of the model",
    behind_the_back: "the forward changes 'calls' of the model",
    deleted: "the forward changes '_buffers' of the model",
}


def line_of(error: trace.TraceError) -> str:
    return str(error).split(": in the forward")[0]


@pytest.mark.parametrize("code", WITH_LINE, ids=lambda code: code.__name__)
def test_a_refusal_names_the_line(code: Callable[[Model, Tensor], Tensor]) -> None:
    model = Model(code)
    with pytest.raises(trace.TraceError, match=WITH_LINE[code]) as caught:
        trace.record(model, all_whole, X)
    file, line, *_ = line_of(caught.value).split(":")
    first = code.__code__.co_firstlineno
    assert file == __file__
    assert first < int(line) <= first + 4


@pytest.mark.parametrize("code", WITHOUT_LINE, ids=lambda code: code.__name__)
def test_a_change_of_the_model_is_found_and_undone(code: Callable[..., Tensor]) -> None:
    model = Model(code)
    with pytest.raises(trace.TraceError, match=WITHOUT_LINE[code]):
        trace.record(model, all_whole, X)


@pytest.mark.parametrize("code", [*WITH_LINE, *WITHOUT_LINE], ids=lambda code: code.__name__)
def test_a_refused_model_is_as_before(code: Callable[..., Tensor]) -> None:
    model = Model(code)
    names, state = set(model.__dict__), {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(trace.TraceError):
        trace.record(model, all_whole, X)
    assert set(model.__dict__) == names
    assert model.calls == 0
    assert not model.seen
    assert not model.memory
    assert torch.equal(model.plain, torch.ones(3))
    assert {*model.state_dict()} == {*state}
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    model.calls = 5  # setting attributes works again
    assert isinstance(torch.zeros(2), Tensor)


class InSubmodule(nn.Module):
    def __init__(self, code: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(3, 3), Model(code)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.first(x))


NEEDS_NUMBERS = [by_value, item, number, loop, old_constructor, in_a_list, autograd_function]
BESIDE = [counter, new_buffer, append, plain_in_place, other_kernels, other_format, new_layer]


@pytest.mark.parametrize("code", NEEDS_NUMBERS + BESIDE, ids=lambda code: code.__name__)
def test_the_remedy_helps(code: Callable[[Model, Tensor], Tensor]) -> None:
    model = InSubmodule(code)
    before = dict(vars(model.inner))
    cut = check(model, X, ["inner"], all_whole)
    assert cut[1].modules == {"inner"}
    trace.record(model, all_whole, X)
    same = {key for key, value in vars(model.inner).items() if value is before[key]}
    assert before.keys() - same <= {"calls"}, "what running it changed, and nothing else"


class Shrinks(nn.Linear):
    """Returns as many rows as numbers say, or a number of Python's own."""

    def __init__(self, counts: bool) -> None:
        super().__init__(3, 3)
        self.counts = counts

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        if self.counts:
            return y, int((x > 100).sum())
        return y if x.max() < 100 else y[:1]


class AfterShrinking(nn.Module):
    """Goes on by what a submodule returned."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.first, self.odd, self.last = nn.Identity(), Shrinks(counts), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.odd(self.first(x))
        y, count = y if isinstance(y, tuple) else (y, y.shape[0])
        return self.last(y) * (count + 1)


@pytest.mark.parametrize("counts", [False, True])
def test_other_numbers_that_would_lead_elsewhere_are_refused(counts: bool) -> None:
    model = AfterShrinking(counts)
    cut = parts.cut(followed(model, X), ["last"])
    for rows in (3, 2):
        x = torch.rand(rows, 3)
        assert torch.equal(run_all(cut, model, {"x": x}), model(x))
    with pytest.raises(ValueError, match=r"'odd' decides by numbers and returned .* was cut for"):
        run_all(cut, model, {"x": torch.full((3, 3), 1000.0)})


def returns_what_it_is_given(model: Model, x: Tensor) -> Tensor:
    return x if x.sum() > -1e9 else -x


class ChangesWhatWasReturned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.odd = nn.Linear(3, 3), Model(returns_what_it_is_given)
        self.odd.one = self.odd.two = nn.Identity()  # type: ignore[assignment]
        self.last = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        z = self.odd(y)
        z.mul_(2)
        return self.last(y)


def test_a_submodule_that_decides_may_return_what_it_was_given() -> None:
    check(ChangesWhatWasReturned(), X, ["last"])
    with pytest.raises(ValueError, match="'odd' cannot begin a part, because 'mul_'"):
        parts.cut(followed(ChangesWhatWasReturned(), X), ["odd"])


def test_a_submodule_that_decides_needs_no_numbers_of_its_own() -> None:
    with torch.device("meta"):
        model = InSubmodule(by_value)
    assert parts.cut(followed(model, X), ["inner"])[1].modules == {"inner"}


def of_python(model: Model, x: Tensor) -> Tensor:
    return x * random.random()


def of_numpy(model: Model, x: Tensor) -> Tensor:
    return x * float(np.random.rand())


@pytest.mark.parametrize(("code", "name"), [(of_python, "random"), (of_numpy, "numpy.random")])
def test_random_numbers_that_torch_does_not_draw(code: Callable[..., Tensor], name: str) -> None:
    with pytest.raises(trace.TraceError, match=f"draws random numbers from {name}"):
        trace.record(Model(code), all_whole, X)


def makes_tensors(model: Model, x: Tensor) -> Tensor:
    rows, columns = x.shape
    made = torch.zeros(rows, columns) + torch.ones((rows, 1)) + torch.arange(columns)
    made = made + torch.full((rows, 1), 2.0) + torch.rand(3) + torch.tensor([1.0, 2.0, 3.0])
    made = made + torch.randn(rows, columns, dtype=x.dtype, device=x.device)
    return x + made + torch.tensor(rows) + torch.eye(columns)[0] + torch.finfo(x.dtype).eps


def changes_values_in_place(model: Model, x: Tensor) -> Tensor:
    same = x = x * 1
    x += 1
    x[:, 0] = 2.0
    x.mul_(3)
    return x + same


def uses_stored_tensors(model: Model, x: Tensor) -> Tensor:
    assert model.weight.shape[0] == model.plain.size(0) == 3
    scaled = model.plain * 2 + model.plain.real
    return x * scaled + model.weight[: model.mean.numel()] - model.mean.detach()


def batch_norm_by_hand(model: Model, x: Tensor) -> Tensor:
    return F.batch_norm(x, model.mean, model.weight.detach().clone(), training=model.training)


BY_SIZE = [by_size, integer, length, counted_loop, star, kind, kind_by_torch]
REGIONS = [without_gradients, layer_without_gradients, half, kept, kept_reentrant]
TENSORS = [makes_tensors, changes_values_in_place, uses_stored_tensors, batch_norm_by_hand]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    "code",
    [*BY_SIZE, *REGIONS, *TENSORS, shape_in_place, layer_as_argument],
    ids=lambda code: code.__name__,
)
def test_what_is_recorded_gives_the_same_numbers(code: Callable[..., Tensor]) -> None:
    check(Model(code), {"x": torch.randn(4, 3)}, ["two"])


def test_tensors_are_made_anew_at_every_run() -> None:
    model = Model(makes_tensors)
    (part,) = parts.cut(followed(model, X), [])
    x = torch.randn(3, 3)
    assert not torch.equal(parts.run(part, model, {"x": x}), parts.run(part, model, {"x": x}))


def test_following_draws_nothing() -> None:
    model, before = Model(makes_tensors), torch.get_rng_state()
    trace.record(model, all_whole, X)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_root_that_is_not_only_its_class() -> None:
    model, inputs = Block(4), {"x": torch.randn(2, 3, 4)}
    handle = model.register_forward_hook(lambda *args: None)
    with pytest.raises(trace.TraceError, match="the Block has forward hooks"):
        trace.record(model, all_whole, inputs)
    handle.remove()
    model.__dict__["forward"] = lambda x: x
    with pytest.raises(trace.TraceError, match="the forward of this Block object was replaced"):
        trace.record(model, all_whole, inputs)
