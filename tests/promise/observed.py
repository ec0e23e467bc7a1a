"""A small job under any settings, and all that can be seen of it from outside."""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

import fleetx as fleet
from fleetx import roles

BATCHES = 4
SAMPLES = 8


@dataclass(frozen=True)
class Case:
    """What is trained how; cases that are equal are trained once."""

    settings: tuple[tuple[str, Any], ...]
    """Attribute -> value; of blocks, pairs of key and value."""
    model: str = "net"
    adam: bool = False

    @classmethod
    def of(cls, settings: Mapping[str, Any], model: str = "net", *, adam: bool = False) -> "Case":
        return cls(tuple(sorted((k, _frozen(v)) for k, v in settings.items())), model, adam)

    def strategy(self) -> fleet.DistributedStrategy:
        strategy = fleet.DistributedStrategy()
        for name, value in self.settings:
            setattr(strategy, name, dict(value) if _is_block(name) else value)
        return strategy


def _is_block(name: str) -> bool:
    return name.endswith(("_configs", "_strategy"))


def _frozen(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, dict) else value


@dataclass
class Seen:
    """What one rank saw of a job."""

    weights: Any = None
    """The whole model at the end."""
    updates: list[bool] = field(default_factory=list)
    """After each batch, whether the weights that this rank holds have moved."""
    collectives: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    """Collective, format and bytes of what this rank gave into it -> how often."""
    groups: int = 0
    """Process groups over which Python asks for all-reduces."""
    held: dict[str, int] = field(default_factory=dict)
    """Parameter -> how many of its numbers lie on this rank."""
    saved: int = 0
    """Bytes that wait for backwards."""
    calls: list[str] = field(default_factory=list)
    """Which parts ran forward and backward, in their order, with the samples of each call."""
    state: Any = None
    """What strategies put into a checkpoint."""
    compiled: list[Any] = field(default_factory=list)
    """What ``torch.compile`` was told."""
    said: list[str] = field(default_factory=list)
    """Log lines."""
    error: str | None = None

    def of(self, what: str) -> Any:
        return getattr(self, what)


class Forked(nn.Module):
    """A batch reaches one of two branches, on all workers the same."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 4), nn.Linear(8, 4)
        self.turn = 0

    @override
    def forward(self, x: Tensor) -> Tensor:
        self.turn += 1
        found: Tensor = self.left(x) if self.turn % 2 else self.right(x)
        return found


class Words(nn.Module):
    """Layers with the names of a transformer's, for those who cut by names."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.drop, self.norm = nn.Embedding(32, 16), nn.Dropout(0.1), nn.LayerNorm(16)
        self.fc1, self.act, self.fc2 = nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)
        self.head = nn.Linear(16, 32)

    @override
    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.drop(self.embed(tokens)))
        found: Tensor = self.head(x + self.fc2(self.act(self.fc1(x))))
        return found


def net(width: int) -> nn.Module:
    """Something for every flag: wide layers, batch norm, dropout, parts with names."""
    body = [nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.1)]
    mlp = [nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width)]
    parts = {"stem": nn.Linear(8, width), "body": nn.Sequential(*body), "mlp": nn.Sequential(*mlp)}
    return nn.Sequential(OrderedDict(parts | {"head": nn.Linear(width, 4)}))


def gpt2() -> nn.Module:
    """A model of another library with words, tied weights and outputs by name."""
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        vocab_size=1024,
        n_positions=8,
        n_embd=16,
        n_layer=2,
        n_head=2,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


def shufflenet() -> nn.Module:
    """A model of another library with pictures, branches and batch norm."""
    from tests.libraries import torchvision

    made: nn.Module = torchvision.models.ShuffleNetV2([1, 1, 1], [8, 8, 16, 32, 32], num_classes=4)
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "gpt2": gpt2,
    "shufflenet": shufflenet,
    "net": lambda: net(128),
    "wide": lambda: net(640),
    "forked": Forked,
    "words": Words,
}


def batch(model: str, number: int, share: int) -> tuple[Any, Tensor]:
    generator = torch.Generator().manual_seed(10 * number + share)
    if model in ("words", "gpt2"):
        tokens = torch.randint(0, 32, (SAMPLES, 7), generator=generator)
        return _named(model, tokens[:, :-1]), tokens[:, 1:]
    shape = (3, 32, 32) if model == "shufflenet" else (8,)
    inputs = torch.randn(SAMPLES, *shape, generator=generator)
    return inputs, torch.randint(0, 4, (SAMPLES,), generator=generator)


def _named(model: str, tokens: Tensor) -> Any:
    return {"input_ids": tokens} if model == "gpt2" else tokens


def criterion(outputs: Any, targets: Tensor) -> Tensor:
    outputs = getattr(outputs, "logits", outputs)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def observe(cases: list[Case]) -> list[Seen]:
    """What this rank sees of each of the jobs, one after the other."""
    found = []
    for case in cases:
        seen = Seen()
        try:
            _train(case, seen)
        except (ValueError, RuntimeError) as error:
            seen.error = f"{type(error).__name__}: {error}"
        finally:
            roles.stop()
        found.append(seen)
    return found


def _train(case: Case, seen: Seen) -> None:
    strategy = case.strategy()
    with ExitStack() as stack:
        stack.enter_context(_heard(seen.said))
        stack.enter_context(mock.patch.object(torch, "compile", _told(seen.compiled)))
        fleet.init(is_collective=True, strategy=strategy)
        torch.manual_seed(0)
        plain = MODELS[case.model]()
        rule: Any = torch.optim.Adam if case.adam else torch.optim.SGD
        options = {"lr": 0.002} if case.adam else {"lr": 0.05, "momentum": 0.9}
        sample = batch(case.model, 0, 0)[0] if strategy.auto or strategy.pipeline else None
        model: Any = fleet.distributed_model(plain, criterion=criterion, sample=sample)
        _listen(model, seen.calls)
        optimizer = fleet.distributed_optimizer(rule(model.parameters(), **options))
        torch.manual_seed(3 + fleet.worker_index())
        stack.enter_context(saved_tensors_hooks(_weigh(seen), lambda tensor: tensor))
        stack.enter_context(_Counting(seen.collectives))
        used = stack.enter_context(_groups())
        for number in range(BATCHES):
            before = [_local(p).clone() for p in model.parameters()]
            model.train_batch(batch(case.model, number, fleet.data_index()))
            pairs = zip(before, model.parameters(), strict=True)
            seen.updates.append(any(not torch.equal(old, _local(p)) for old, p in pairs))
    seen.groups = len(used)
    seen.held = {name: _local(p).numel() for name, p in model.named_parameters()}
    seen.state = _plain(optimizer.state_dict().get("strategies", {}))
    seen.weights = _plain(fleet.full_state_dict(model, everywhere=True))


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part.detach()


def _plain(tree: Any) -> Any:
    """As lists, which can be compared and sent."""
    if isinstance(tree, Mapping):
        return {key: _plain(value) for key, value in tree.items()}
    return tree.double().tolist() if isinstance(tree, Tensor) else tree


def _weigh(seen: Seen) -> Callable[[Tensor], Tensor]:
    def pack(tensor: Tensor) -> Tensor:
        seen.saved += tensor.numel() * tensor.element_size()
        return tensor

    return pack


def _listen(model: nn.Module, calls: list[str]) -> None:
    """Note which layer runs on how many samples, and which parameter gets a gradient when."""

    def ran(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            calls.append(f"forward {name} {len(args[0]) if args else ''}")

        return hook

    def reached(name: str) -> Callable[[Tensor], None]:
        return lambda parameter: calls.append(f"backward {name}")

    for name, module in model.named_modules():
        if name and not any(module.children()):
            module.register_forward_hook(ran(name))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(reached(name))


def _told(compiled: list[Any]) -> Callable[..., Any]:
    """Notes what is asked for and leaves the code as it is: inductor takes minutes on a CPU."""

    def compile(forward: Any, **options: Any) -> Any:
        compiled.append(options)

        def run(*args: Any, **kwargs: Any) -> Any:
            owner = getattr(args[0], "__self__", None) if args else None
            if (kind := type(owner).__name__) not in compiled:
                compiled.append(kind)
            return forward(*args, **kwargs)

        return run

    return compile


@contextmanager
def _heard(said: list[str]) -> Iterator[None]:
    class Ear(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    root, ear = logging.getLogger("fleetx"), Ear()
    root.addHandler(ear)
    try:
        yield
    finally:
        root.removeHandler(ear)


@contextmanager
def _groups() -> Iterator[set[str]]:
    real, used = dist.all_reduce, set[str]()

    def all_reduce(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        group = kwargs.get("group")
        used.add(f"{group.group_name if group is not None else 'world'}")
        return real(tensor, *args, **kwargs)

    with mock.patch.object(dist, "all_reduce", all_reduce):
        yield used


class _Counting(TorchDispatchMode):
    """Counts the collectives of this rank, with the format and the bytes of each."""

    def __init__(self, counts: Counter[tuple[Any, ...]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counts = counts

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = str(func).partition(".")
        if space in ("c10d", "_c10d_functional"):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            kinds = tuple((str(t.dtype), t.numel() * t.element_size()) for t in tensors)
            self._counts[name, kinds] += 1
        return func(*args, **(kwargs or {}))
