"""What compiled code is expected to keep and to move, against what torch makes of the same code."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

import fleetx as fleet
from fleetx.auto.estimate import Estimate, estimate
from fleetx.plan.accounts import Accounts
from fleetx.plan.compose import compose
from fleetx.plan.share import Share, kept_bytes
from fleetx.plan.subject import Subject
from fleetx.plan.work import FusedKernels
from tests.auto.test_search import cluster
from tests.libraries import timm, torchvision, transformers

SETTINGS: dict[str, Any] = {"compile": True, "compile_configs": {"unit": "model"}}
AMP: dict[str, Any] = {"amp": True, "amp_configs": {"dtype": "bfloat16"}}


class Hidden(nn.Module):
    """A part of a model that is given hidden states, and its first output."""

    def __init__(self, inner: nn.Module, name: str | None = None) -> None:
        super().__init__()
        self.inner, self._name = inner, name

    def forward(self, x: Tensor) -> Tensor:
        """What others would compute with."""
        found = self.inner(x) if self._name is None else self.inner(**{self._name: x})
        made: Tensor = found if isinstance(found, Tensor) else found[0]
        return made


def gpt2() -> tuple[nn.Module, Tensor]:
    config = transformers.GPT2Config(
        n_embd=64,
        n_head=4,
        n_layer=2,
        n_positions=128,
        vocab_size=64,
        use_cache=False,
        attn_pdrop=0,
    )
    config.resid_pdrop = config.embd_pdrop = 0
    return Hidden(transformers.GPT2Model(config), "inputs_embeds"), torch.randn(4, 128, 64)


def llama() -> tuple[nn.Module, Tensor]:
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        use_cache=False,
    )
    return Hidden(transformers.LlamaModel(config), "inputs_embeds"), torch.randn(4, 128, 64)


def resnet() -> tuple[nn.Module, Tensor]:
    return torchvision.models.resnet50(num_classes=10), torch.randn(4, 3, 64, 64)


def vit() -> tuple[nn.Module, Tensor]:
    block = timm.create_model("vit_tiny_patch16_224").blocks[0]
    return Hidden(block), torch.randn(4, 197, 192)


def mlp() -> tuple[nn.Module, Tensor]:
    """With masks of a dropout, which are a byte for each number, and gelu in the manual's words."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            y = 0.5 * y * (1 + torch.tanh(0.797885 * (y + 0.044715 * y.pow(3))))
            return functional.dropout(self.second(y), 0.5) + x

    return Net(), torch.randn(512, 64)


def share(model: nn.Module, sample: Tensor, settings: dict[str, Any], **given: Any) -> Share:
    """What a lone worker holds under a plan."""
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    subject = Subject(model=model, sample=sample, **given)
    return Accounts(compose(strategy.request(), 1), subject).share(0)


def really_kept(model: nn.Module, sample: Tensor, *, amp: bool) -> int:
    """Bytes that wait for the backward of code that torch has cut in two as inductor does."""
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager_decomp_partition", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        output = compiled(sample)
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found = {}
    for node in nodes(output):
        several = (*getattr(node, "saved_tensors", ()), *(_unchecked(node)))
        for tensor in (one for one in several if one is not None):
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    torch._dynamo.reset()
    return sum(size for place, size in found.items() if place not in own)


def _unchecked(node: Any) -> tuple[Tensor, ...]:
    """Some versions of torch keep what cannot change elsewhere."""
    return tuple(getattr(node, "_tensors_no_vc_check", None) or ())


def nodes(output: Tensor) -> Iterator[Any]:
    """Of autograd's graph."""
    todo, seen = [output.grad_fn], set[Any]()
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            todo += [after for after, _ in node.next_functions]


@pytest.mark.parametrize("amp", [False, True], ids=["float32", "amp"])
@pytest.mark.parametrize(
    ("made", "spared"),
    [
        pytest.param(gpt2, 1.3, id="gpt2"),
        pytest.param(llama, 1.2, id="llama"),
        pytest.param(resnet, 1.01, id="resnet50"),
        pytest.param(vit, 1.0, id="vit"),
        pytest.param(mlp, 1.2, id="mlp"),
    ],
)
def test_it_keeps_what_torch_keeps(
    made: Callable[[], tuple[nn.Module, Tensor]], spared: float, amp: bool
) -> None:
    torch.manual_seed(0)
    model, sample = made()
    settings = AMP if amp else {}
    expected = kept_bytes(share(model, sample, SETTINGS | settings).waiting)
    eager = kept_bytes(share(model, sample, settings).waiting)
    assert expected == pytest.approx(really_kept(model, sample, amp=amp), rel=0.05)
    assert eager >= spared * expected, "the same as before would be a bad guess"


def bytes_moved(
    model: nn.Module,
    sample: Tensor,
    clock: Any = None,
    targets: Any = None,
    criterion: Any = None,
    **settings: Any,
) -> tuple[float, float]:
    """By all that is no product: forward and backward."""
    given = {"targets": targets, "criterion": criterion} if criterion else {}
    work = share(model, sample, settings, clock=clock, **given).work
    assert work is not None
    other = work.operations == 0
    moved = (work.moved * other).sum()
    return float(moved), float((work.moved * work.backwards * other).sum())


def test_operators_between_products_are_one_kernel() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Tanh(), nn.ReLU(), nn.Linear(256, 64))
    size = 512 * 256 * 4
    forward, backward = bytes_moved(model, torch.randn(512, 64), **SETTINGS)
    assert forward == 2 * size, (
        "it reads what the first product made, and writes what the second reads"
    )
    assert backward == 4 * size, (
        "a gradient, the first product's result and the last, which is kept"
    )
    assert bytes_moved(model, torch.randn(512, 64))[0] == 6 * size


def test_statistics_over_a_batch_read_it_once_more() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)
    )
    size = 32 * 16 * 14 * 14 * 4
    forward, backward = bytes_moved(model, torch.randn(32, 8, 14, 14), **SETTINGS)
    assert forward == pytest.approx(3 * size, rel=0.01)
    # Sums: the gradient, signs and what was normalised, with a gradient behind relu written for the
    # second pass, which reads it and what was normalised, and writes.
    assert backward == pytest.approx(7 * size, rel=0.01)


def estimated(settings: dict[str, Any], *, rule: Any = torch.optim.AdamW, **given: Any) -> Estimate:
    """Of a model whose words are most of it, on a device that only moves bytes."""
    model = nn.Sequential(nn.Embedding(80_000, 32), nn.Linear(32, 4000))
    strategy = fleet.DistributedStrategy()
    for name, value in settings.items():
        setattr(strategy, name, value)
    subject = Subject(
        model=model,
        optimizer=rule(model.parameters()),
        sample=torch.zeros(64, 16, dtype=torch.long),
        targets=torch.zeros(64, 16, dtype=torch.long),
        criterion=lambda outputs, targets: functional.cross_entropy(
            outputs.float().flatten(0, 1), targets.flatten()
        ),
        **given,
    )
    on = cluster(devices_per_node=1, teraflops={"product 32": 1e6}, memory_gigabytes_per_second=1.0)
    on = replace(on, device=replace(on.device, microseconds_per_kernel=0.0))
    return estimate(Accounts(compose(strategy.request(), 1), subject), on)


def test_a_compiled_criterion_keeps_no_probabilities() -> None:
    size = 64 * 16 * 4000 * 4
    alone = {"compile": True, "compile_configs": {"unit": "model", "criterion": False}}
    eager, found = estimated(alone), estimated(SETTINGS)
    assert eager.held["activations"] - found.held["activations"] < 0.01 * size, "scores for these"
    assert eager.memory - found.memory == pytest.approx(size, rel=0.05)
    assert eager.forward - found.forward == pytest.approx(2 * size / 1e9, rel=0.1)


def test_the_first_batch_of_a_new_job_needs_what_its_plain_criterion_keeps() -> None:
    """An optimizer's state is larger here, but there is none yet, and never with plain SGD."""
    alone = {"compile": True, "compile_configs": {"unit": "model", "criterion": False}}
    eager, found = (estimated(settings, rule=torch.optim.SGD) for settings in (alone, SETTINGS))
    assert found.memory == pytest.approx(eager.memory, rel=0.01)
    later = estimated(SETTINGS)
    assert later.memory > found.memory
    assert later.held["optimizer state"] > 0


def test_what_recompute_keeps_is_left_to_it() -> None:
    model, sample = gpt2()
    replayed = {"recompute": True, "recompute_configs": {"checkpoints": ["inner.h.*"]}}
    plain, found = share(model, sample, replayed), share(model, sample, replayed | SETTINGS)
    assert kept_bytes(found.waiting) == kept_bytes(plain.waiting)


def test_code_of_another_backend_is_not_taken_for_inductors() -> None:
    model, sample = mlp()
    settings = {"compile": True, "compile_configs": {"backend": "eager", "unit": "model"}}
    sizes = [[one.size for one in share(model, sample, s).waiting] for s in (settings, {})]
    assert sizes[0] == sizes[1]


class Stopwatch:
    """Finds products of odd sizes slower, as cards do."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __call__(self, one: Any, wanted: Any) -> tuple[float, float]:
        if not one.count.moved:
            return 0.0, 0.0
        if "clone" in str(one.signature.operator):
            return 0.25, float("nan")
        self.asked.append(one.signature)
        aligned = all(n % 8 == 0 for blank in one.signature.args[-2:] for n in blank.shape[-2:])
        return (1.0, 2.0) if aligned else (5.0, 6.0)

    def update(self, rule: Any) -> tuple[float, float]:
        return 0.0, 0.0

    def fused(self) -> FusedKernels:
        return FusedKernels()


class SlowSums(Stopwatch):
    """Measures nothing but kernels of code, which the others are as fast as memory beside."""

    def __call__(self, one: Any, wanted: Any) -> tuple[float, float]:
        return float("nan"), float("nan")

    def fused(self) -> FusedKernels:
        return FusedKernels(each=100, each_sum=7000, statistics=3, sums=2, starts=4, call=10)


def test_kernels_of_code_take_what_was_measured() -> None:
    model = nn.Sequential(
        nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 1)
    )
    told, images = partial(bytes_moved, model), torch.randn(32, 8, 14, 14)
    size = 32 * 16 * 14 * 14 * 4
    plain, timed = (told(images, **SETTINGS, clock=clock) for clock in (None, SlowSums()))
    assert timed[0] == pytest.approx(plain[0] + 2 * size + 7000 + 100, rel=0.01)
    # The sums read three of the seven, and write one of them.
    assert timed[1] == pytest.approx(plain[1] + 4 * size + 7000 + 100, rel=0.01)


class SlowWindows(SlowSums):
    @override
    def fused(self) -> FusedKernels:
        return FusedKernels(windows=5)


def test_gradients_of_a_pooling_are_collected_from_its_windows() -> None:
    model = nn.Sequential(nn.Conv2d(8, 16, 1), nn.MaxPool2d(3, 2, 1), nn.Conv2d(16, 8, 1))
    told, images = partial(bytes_moved, model), torch.randn(32, 8, 14, 14)
    plain, timed = (told(images, **SETTINGS, clock=clock) for clock in (None, SlowWindows()))
    pooled = 32 * 16 * 7 * 7
    collected = 4 * 4 * pooled + 4 * pooled + pooled  # of the input, of the result, and places
    assert timed[0] == plain[0]
    assert timed[1] == pytest.approx(plain[1] + 4 * collected)


class SlowRows(SlowSums):
    @override
    def fused(self) -> FusedKernels:
        return FusedKernels(rows=2)


def test_what_goes_along_rows_takes_longer_than_a_copy() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.LayerNorm(256), nn.Linear(256, 64))
    told, sample = partial(bytes_moved, model, torch.randn(512, 64), **SETTINGS), 512 * 256 * 4
    plain, timed = (told(clock=clock) for clock in (None, SlowRows()))
    assert timed[0] == pytest.approx(plain[0] + 2 * sample, rel=0.02)
    assert timed[1] == pytest.approx(plain[1] + 3 * sample, rel=0.02)


def test_the_backward_of_a_criterion_begins_at_its_loss() -> None:
    told = partial(
        bytes_moved,
        nn.Linear(64, 1000),
        torch.randn(512, 64),
        targets=torch.randint(1000, (512,)),
        criterion=functional.cross_entropy,
    )
    scores = 512 * 1000 * 4
    outside, inside = (
        told(compile=True, compile_configs={"unit": "model", "criterion": criterion})
        for criterion in (False, True)
    )
    assert inside[1] == pytest.approx(2 * scores, rel=0.02)  # scores, and their gradient
    assert outside[1] > inside[1]


def test_starts_of_code_are_those_that_were_measured() -> None:
    told = partial(share, nn.Linear(64, 64), torch.randn(16, 64), SETTINGS)
    plain, timed = (told(clock=clock).work for clock in (None, SlowSums()))
    assert plain is not None
    assert timed is not None
    assert (plain.starts.sum(), timed.starts.sum()) == (1, 4 + 10)


def test_products_on_cards_are_padded_to_what_is_fast() -> None:
    clock = Stopwatch()
    sample = torch.randn(16, 64)
    told = partial(share, nn.Linear(64, 50257, bias=False).bfloat16(), sample.bfloat16())
    card = {"device": torch.device("cuda"), "clock": clock}
    eager, code = (told(settings, **card).work for settings in ({}, SETTINGS))
    on_cpu = told(SETTINGS, clock=clock).work
    assert eager is not None
    assert code is not None
    assert on_cpu is not None
    assert eager.forward_seconds.max() == on_cpu.forward_seconds.max() == 5
    # The factor that is filled up, and in backward the gradient of the result, too.
    assert (code.forward_seconds.max(), code.backward_seconds.max()) == (1.25, 2.5)
    assert any(blank.shape == (64, 50264) for called in clock.asked for blank in called.args[-2:])


def test_convolutions_are_measured_as_inductor_lays_them_out() -> None:
    class ByLayout(Stopwatch):
        def __call__(self, one: Any, wanted: Any) -> tuple[float, float]:
            if one.count.kind != "convolution":
                return 0.0, 0.0
            strides = one.signature.args[0].stride
            return (1.0, 2.0) if strides[1] == 1 else (3.0, 4.0)

    told = partial(share, nn.Conv2d(64, 128, 3), torch.randn(2, 64, 8, 8), clock=ByLayout())
    eager, code = (told(settings).work for settings in ({}, SETTINGS))
    assert eager is not None
    assert code is not None
    assert (eager.forward_seconds.max(), eager.backward_seconds.max()) == (3, 4)
    assert (code.forward_seconds.max(), code.backward_seconds.max()) == (1, 2)
