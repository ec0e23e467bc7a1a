"""What a rank of a running job really holds and sends, in the words of ``explain()``."""

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from typing_extensions import override

import fleetx as fleet
from fleetx import roles
from fleetx.plan.explain import Explanation
from tests.pairs import Pairs

SAMPLES, LENGTH, VOCABULARY = 8, 16, 64


@dataclass
class Measured:
    """Bytes of one rank."""

    parameters: int = 0
    gradients: int = 0
    state: int = 0
    activations: int = 0
    sent: Counter[str] = field(default_factory=Counter)
    """Collective -> bytes of the tensors that it was called with, for one update."""


@dataclass(frozen=True)
class Case:
    """What is trained how."""

    settings: Mapping[str, Any]
    model: str = "words"
    adam: bool = True
    batches: int = 1
    """For one update."""
    blocks: int = 4
    """Of the model that is our own."""


class Block(nn.Module):
    """A block of a transformer, with the names that plans look for."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln1(x))
        found: Tensor = x + self.mlp(self.ln2(x))
        return found


class Attention(nn.Module):
    """Heads that look at all positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(width, width) for _ in range(4)
        )

    @override
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.o_proj(seen.transpose(1, 2).flatten(2))
        return found


class Words(nn.Module):
    """A small transformer with tied weights."""

    def __init__(self, width: int = 128, blocks: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    @override
    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        found: Tensor = self.head(self.norm(x))
        return found


def pictures() -> nn.Module:
    from tests.libraries import torchvision

    made: nn.Module = torchvision.models.resnet18(num_classes=10)
    return made


def llama() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        use_cache=False,
    )
    made: nn.Module = transformers.LlamaForCausalLM(config)
    return made


def gpt2() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=4,
        n_head=4,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    made: nn.Module = transformers.GPT2LMHeadModel(config)
    return made


def bert() -> nn.Module:
    from tests.libraries import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    made: nn.Module = transformers.BertForMaskedLM(config)
    return made


def made(case: Case) -> nn.Module:
    return Words(blocks=case.blocks) if case.model == "words" else MODELS[case.model]()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "pictures": pictures,
    "llama": llama,
    "gpt2": gpt2,
    "bert": bert,
}


def batch(model: str) -> tuple[Any, Tensor]:
    if model == "pictures":
        return torch.randn(SAMPLES, 3, 64, 64), torch.randint(0, 10, (SAMPLES,))
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH))
    return {"input_ids": tokens}, tokens


def criterion(outputs: Any, targets: Tensor) -> Tensor:
    outputs = getattr(outputs, "logits", outputs)
    return F.cross_entropy(outputs.flatten(0, -2), targets.flatten())


def optimizer_of(case: Case, model: nn.Module) -> torch.optim.Optimizer:
    if case.adam:
        return torch.optim.AdamW(model.parameters(), lr=0.001)
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def strategy_of(case: Case) -> fleet.DistributedStrategy:
    strategy = fleet.DistributedStrategy()
    for name, value in case.settings.items():
        setattr(strategy, name, value)
    return strategy


def told(case: Case, workers: int) -> Explanation:
    """What the plan says before anything runs, of a model without numbers."""
    with torch.device("meta"):
        model = made(case)
    sample, targets = batch(case.model)
    return strategy_of(case).explain(
        model,
        workers=workers,
        optimizer=optimizer_of(case, model),
        sample=sample,
        criterion=criterion,
        targets=targets,
    )


def measure(case: Case) -> Measured:
    """What this rank then holds and sends."""
    found = Measured()
    try:
        _train(case, found)
    finally:
        roles.stop()
    return found


def _train(case: Case, found: Measured) -> None:
    fleet.init(is_collective=True, strategy=strategy_of(case))
    sample, targets = batch(case.model)
    torch.manual_seed(0)
    plain = made(case)
    model: Any = fleet.distributed_model(plain, criterion=criterion, sample=sample)
    given = optimizer_of(case, model)
    given.register_step_pre_hook(lambda optimizer, args, kwargs: _weigh(model, optimizer, found))
    fleet.distributed_optimizer(given)
    kept = Kept(model)
    for _ in range(2 * case.batches):  # shapes are learned in the first ones
        model.train_batch((sample, targets))
    with ExitStack() as stack:
        stack.enter_context(saved_tensors_hooks(kept.pack, lambda held: held.tensor))
        stack.enter_context(Counting(found.sent))
        for _ in range(case.batches):
            model.train_batch((sample, targets))
    found.activations = kept.most


def _weigh(model: nn.Module, optimizer: torch.optim.Optimizer, found: Measured) -> None:
    """Before a step: gradients are there, and what earlier steps have left."""
    leaves = [leaf for state in optimizer.state.values() for leaf in tree_leaves(dict(state))]
    found.state = sum(_size(_local(leaf)) for leaf in leaves if isinstance(leaf, Tensor))
    held = list(model.parameters())
    found.parameters = sum(_size(_local(p)) for p in held)
    found.gradients = sum(_size(_local(p.grad)) for p in held if p.grad is not None)


def _local(tensor: Any) -> Tensor:
    part: Tensor = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    elem = getattr(part, "elem", None)  # of a collective that is still under way
    return part if elem is None else elem


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


class _Held:
    """Something that autograd keeps, and says when it lets go."""

    def __init__(self, tensor: Tensor, gone: Callable[[], None]) -> None:
        self.tensor, self._gone = tensor, gone

    def __del__(self) -> None:
        self._gone()


class Kept:
    """The memory that waits for backwards, each piece once."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._times: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}
        self.most = 0

    def pack(self, tensor: Tensor) -> _Held:
        part = _local(tensor.detach())
        key = part.untyped_storage()._cdata
        if key not in self._sizes and key in self._own():
            return _Held(tensor, lambda: None)
        self._times[key] += 1
        self._sizes[key] = part.untyped_storage().nbytes()
        self.most = max(self.most, sum(self._sizes.values()))
        return _Held(tensor, lambda: self._let_go(key))

    def _let_go(self, key: int) -> None:
        self._times[key] -= 1
        if not self._times[key]:
            del self._times[key], self._sizes[key]

    def _own(self) -> set[int]:
        # Not by parameters(), which a pipeline refuses to give parts of inside of a batch.
        every = (p for module in self._model.modules() for p in module._parameters.values())
        tensors = (*(p for p in every if p is not None), *self._model.buffers())
        return {_local(t.detach()).untyped_storage()._cdata for t in tensors}


def _kind(name: str) -> str:
    """The collective, in the words of explanations."""
    plain = name.replace("_", "")
    known = ("reduce-scatter", "all-reduce", "all-gather", "send", "broadcast")
    return next(kind for kind in known if kind.replace("-", "") in plain)


class Counting(TorchDispatchMode):
    """Bytes of the tensors with which collectives are called."""

    def __init__(self, sent: Counter[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sent = sent
        self._pairs = Pairs(self._seen)

    def _seen(self, name: str, whole: Tensor) -> None:
        self._sent[_kind(name)] += _size(whole)

    def __enter__(self) -> "Counting":
        self._pairs.__enter__()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._pairs.__exit__(*error)

    @override
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # what it is made of comes by
        space, _, name = str(func).removesuffix(".default").partition(".")
        if self._pairs.inside:
            pass  # it was counted as a whole
        elif space == "c10d" and not name.startswith(("recv", "barrier")):
            tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
            sizes = [_size(tensor) for tensor in tensors]
            whole = max(sizes) if name.startswith("_") else sum(sizes)
            if name == "allgather_":  # its own part is among the tensors
                whole = sum(sizes) - sizes[-1]
            self._sent[_kind(name)] += whole
        elif space == "_c10d_functional" and not name.startswith(("wait", "_wrap")):
            ranks = args[1] if name.startswith("all_gather") else 1
            self._sent[_kind(name)] += _size(args[0]) * ranks
        return func(*args, **(kwargs or {}))
