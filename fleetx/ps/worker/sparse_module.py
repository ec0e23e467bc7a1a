"""The base of layers over sparse tables: it hands gradients of rows to the carrier."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.ps.tables.entries import CountFilterEntry, ProbabilityEntry
from fleetx.ps.tables.id_batch import IdBatch
from fleetx.ps.tables.row_source import RowSource, TableOptions
from fleetx.ps.wire.arrays import Floats
from fleetx.ps.worker.given_rows import GivenRows
from fleetx.ps.worker.row_gradients import RowGradients, array_of, joined
from fleetx.torch_internals import after_backward, current_backward, hooks_of

_EVALUATED = (
    "an update was asked for, and the layer of table {} is in evaluation mode, in which rows are "
    "looked up but not trained; call model.train() before, and eval() for layers alone that shall "
    "keep their statistics, or freeze the table with requires_grad_(False)"
)
_PENALISED = (
    "the loss depends on the parameter of table {} itself, as a penalty over model.parameters() "
    "does, and that is empty here: the rows are on the servers, and would not be penalised. Leave "
    "it out, [p for name, p in model.named_parameters() if not name.endswith('anchor')], and "
    "penalise the rows that were looked up, as in loss + 1e-4 * model.words(ids).pow(2).sum()"
)
_BESIDE = (
    "a hook was registered on the anchor of a further layer over table {}, where it would not be "
    "called: the anchor of the first layer of the model over that table bears the gradients of "
    "all of them, each row once. Register the hook there, or give the layers names of their own"
)
_OF_EMBEDDINGS = {
    "weight": (
        "the rows are on the servers, and only those that are asked for come here: "
        "layer(torch.arange(n)) gives those of the ids from 0 to n - 1, and trains them"
    ),
    "num_embeddings": "a table has no size: any 64-bit number is an id",
}
"""What scripts ask a layer of torch for -> why there is none here."""


@dataclass(frozen=True)
class Lookup:
    """One use of a table in a forward: which rows, and the way back to them."""

    batch: IdBatch
    backward: Callable[[Tensor], Floats]
    """From the gradient of the result to those of the rows."""
    stats: Floats | None


@dataclass(frozen=True)
class _Refusal:
    """A hook of an anchor, which is reached by penalties alone."""

    table: str

    def __call__(self, gradient: Tensor) -> None:
        raise RuntimeError(_PENALISED.format(repr(self.table)))


@dataclass
class _Shared:
    """One object for all shallow copies of a layer that programs make."""

    source: RowSource | None = None
    """Where rows come from."""
    given: GivenRows | None = None
    """What the table begins with, beside what follows from ids, until the servers have it."""
    given_to: int | None = None
    """Which connections of this process it was given through, if it was."""
    bearer: "SparseModule | None" = None
    """Another layer of the same table, whose anchor bears the gradients of this one, too."""
    shown: RowGradients | None = None
    """Whose gradients the anchor bears, as long as it has any."""
    reached: dict[int, list[RowGradients]] = field(default_factory=dict)
    """Backward -> what it has brought to lookups of this layer so far."""
    aside: list[RowGradients] = field(default_factory=list)
    """Of earlier batches of the same update."""
    followed: bool = False
    """Whether rows were looked up since the last update to be trained."""
    evaluated: bool = False
    """Whether there were some since then that training mode would have trained."""
    kin: int = field(default_factory=partial(secrets.randbits, 62))
    """The same for copies of copy.deepcopy(), each of which has an object of its own."""


class SparseModule(nn.Module):
    """A layer whose rows live on servers.

    ``anchor`` stands for the rows among the model's parameters: it is empty, but between a backward
    and the update it bears their gradients, so that whatever scales, limits or clears gradients
    reaches them too.
    """

    options: TableOptions
    one_operator = True
    """Programs record its call, not what it does."""

    def __init__(self, options: TableOptions) -> None:
        super().__init__()
        self.options = options
        self._shared = _Shared()
        self.anchor = nn.Parameter(torch.empty(0, options.dim))
        register: Any = self.register_state_dict_post_hook
        register(_without_gradients)

    @override
    def __getattr__(self, name: str) -> Any:
        """What the module has; a word where a layer of torch has more."""
        try:
            return super().__getattr__(name)
        except AttributeError as error:
            if name not in _OF_EMBEDDINGS:
                raise
            words = f"{error}; {_OF_EMBEDDINGS[name]}"
            raise AttributeError(words, name=name, obj=self) from None

    @property
    def embedding_dim(self) -> int:
        """Numbers in a row, by the name that layers of torch have for it."""
        return self.options.dim

    @property
    def row_source(self) -> RowSource | None:
        """Where its rows come from, once that is known; the same for all copies of the layer."""
        return self._shared.source

    @row_source.setter
    def row_source(self, source: RowSource | None) -> None:
        self._shared.source = source

    @property
    def given(self) -> GivenRows | None:
        """Rows that the table begins with, if a user gave any and servers do not have them yet."""
        return self._shared.given

    def let_go_of_given(self, session: int) -> None:
        """Servers have them, through these connections: they may be as large as the whole table."""
        if self._shared.given is not None:
            self._shared.given, self._shared.given_to = None, session

    def gave_to_others(self, session: int) -> bool:
        """Whether there were such rows, and they went through other connections than these."""
        return self._shared.given_to not in (None, session)

    def is_copy_of(self, other: "SparseModule") -> bool:
        """Whether it was made from another layer by ``copy.deepcopy``, or both from a third one."""
        return self._shared is not other._shared and self._shared.kin == other._shared.kin

    def bears_with(self, first: "SparseModule") -> None:
        """Let the first layer of the same table bear the gradients of this one, too.

        So a limit of gradients sees those of a row as one, as it does where layers share a weight.
        """
        self._shared.bearer = None if first is self else first

    @property
    def counts_sightings(self) -> bool:
        """Whether ids get a row by how often they were met."""
        return isinstance(self.options.entry, CountFilterEntry | ProbabilityEntry)

    def reset_parameters(self) -> None:
        """Nothing: what rows begin with follows from their ids, on the servers."""

    def forget_ahead(self) -> None:
        """Let go of rows that were fetched for later batches."""

    def learns(self) -> bool:
        """Whether rows that are looked up now may be trained."""
        if self.anchor.grad is None:  # it was cleared, and not used
            self._empty()
        could = self.anchor.requires_grad and torch.is_grad_enabled()
        self._shared.evaluated |= could and not self.training
        return could and self.training

    def follow(self, result: Tensor, lookup: Lookup) -> None:
        """Let an anchor bear what backwards bring to the result of a lookup, a leaf of autograd.

        The leaf alone holds the lookup, so a forward that nobody differentiates leaves nothing.
        """
        self._shared.followed = True
        bearer = self._shared.bearer or self
        self._refuse_hooks_beside(bearer)

        def reach(leaf: Tensor) -> None:
            assert leaf.grad is not None
            # Behind them there may be one for ids that stand for nothing.
            gradients = lookup.backward(leaf.grad)[: len(lookup.batch.ids)]
            leaf.grad = None  # another backward through it counts by itself
            brought = RowGradients(lookup.batch, gradients, lookup.stats)
            backward = current_backward()
            bearer._shared.reached.setdefault(backward, []).append(brought)
            after_backward(partial(bearer._show, backward))

        result.register_post_accumulate_grad_hook(reach)

    def _refuse_hooks_beside(self, bearer: "SparseModule") -> None:
        """Refuse hooks that would not be called: the first layer bears all gradients of the table.

        A loop over all parameters gives both layers the same ones, which are called once there.
        """
        if bearer is not self and _hooks(self.anchor) > _hooks(bearer.anchor):
            raise RuntimeError(_BESIDE.format(repr(self.options.name)))

    def _show(self, backward: int) -> None:
        """Add what a backward brought to what the anchor bears; each row once."""
        if not (each := self._shared.reached.pop(backward, [])):
            return  # another lookup has seen to that
        before, after = hooks_of(self.anchor)  # which autograd does not call, for it stays a leaf
        users = [hook for hook in before if not isinstance(hook, _Refusal)]
        with torch.no_grad():
            self._lend([self._hooked(each, users)] if users else each)
            for hook in after:
                hook(self.anchor)

    def _hooked(self, each: list[RowGradients], hooks: list[Any]) -> RowGradients:
        """What hooks of the anchor make of the gradients of a backward, each row once."""
        gathered = self._gathered(each)
        gradients = self._on_device(gathered)
        for hook in hooks:
            if (changed := hook(gradients)) is not None:
                gradients = changed
        return replace(gathered, gradients=array_of(gradients))

    def set_aside(self) -> None:
        """Keep what the anchor bears for an update that is not due yet."""
        if (shown := self._borne()) is not None:
            self._shared.aside.append(shown)
            self.anchor.grad = None

    def bring_back(self) -> None:
        """Let the anchor bear also what was set aside."""
        self._shared.aside, aside = [], self._shared.aside
        if aside:
            self._lend(aside)

    @property
    def waiting(self) -> list[RowGradients]:
        """What was set aside."""
        return self._shared.aside

    @waiting.setter
    def waiting(self, aside: list[RowGradients]) -> None:
        self._shared.aside = aside

    def _borne(self) -> RowGradients | None:
        """What the anchor bears, and what became of it there."""
        shown, gradients = self._shared.shown, self.anchor.grad
        if shown is None or gradients is None:
            return None
        return replace(shown, gradients=array_of(gradients))

    def _lend(self, more: list[RowGradients]) -> None:
        """Let the anchor bear more than it does; each row once."""
        each = more if (borne := self._borne()) is None else [borne, *more]
        gathered, anchor = self._gathered(each), self.anchor
        gradients = self._on_device(gathered)
        # One number seen many times: only the shape is wanted.
        anchor.grad = None
        anchor.data = anchor.new_zeros(1, 1).expand(gradients.shape)
        anchor.grad = gradients
        self._shared.shown = gathered

    def _gathered(self, each: list[RowGradients]) -> RowGradients:
        return joined(each, len(each[0].batch.begins) - 1, self.options.dim)

    def _on_device(self, gathered: RowGradients) -> Tensor:
        return torch.from_numpy(gathered.gradients).to(self.anchor.device, self.anchor.dtype)

    def refuse_own_gradient(self) -> None:
        """From now on, refuse a loss that depends on the anchor and not on rows."""
        if self.anchor.requires_grad:
            self.anchor.register_hook(_Refusal(self.options.name))

    def refuse_evaluated(self) -> None:
        """Refuse an update of rows that were looked up in evaluation mode alone."""
        if self._shared.evaluated and not self.training and not self._shared.followed:
            raise RuntimeError(_EVALUATED.format(repr(self.options.name)))

    @property
    def was_followed(self) -> bool:
        """Whether rows were looked up since the last update to be trained."""
        return self._shared.followed

    @property
    def bears_gradients(self) -> bool:
        """Whether backwards have brought gradients of rows since then."""
        return self._borne() is not None

    def take(self, servers: int) -> RowGradients:
        """What has become of the gradients since the last time; the anchor is empty again."""
        borne = self._borne()
        self.clear()
        return joined([], servers, self.options.dim) if borne is None else borne

    def clear(self) -> None:
        """Let go of gradients."""
        self._shared.shown = None
        self._shared.followed = self._shared.evaluated = False
        self._shared.reached.clear()  # of backwards that failed
        self.anchor.grad = None
        self._empty()

    def _empty(self) -> None:
        if self.anchor.numel():
            self.anchor.data = self.anchor.new_empty(0, self.options.dim)


def _hooks(anchor: Tensor) -> int:
    """How many hooks of a user an anchor has."""
    before, after = hooks_of(anchor)
    return sum(not isinstance(hook, _Refusal) for hook in before) + len(after)


def _without_gradients(module: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    """Let a state hold the anchor as it is between updates, whatever it bears now."""
    name = f"{prefix}anchor"
    if state[name] is not module.anchor:  # which stands for itself
        state[name] = state[name][:0]
