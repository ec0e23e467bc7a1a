"""Tensor parallel: the weights of single layers are cut, and ranks compute parts of each layer."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Annotated, Any

from torch import nn
from typing_extensions import override

from fleetx.comm.replicas import copy_from_first_rank
from fleetx.graph import layer_kinds
from fleetx.graph.layer_kinds import KINDS, PLANS, PLANS_WITH_VOCABULARY, Cuts, Layers
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.first_order import refuse_second_order
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import AtLeast, OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.step import Step, largest_over
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject
from fleetx.roles.subgroups import carries
from fleetx.strategies.tensor_parallel.costs import spread, traffic
from fleetx.strategies.tensor_parallel.shared_randomness import SharedRandomness, common_seed

logger = logging.getLogger(__name__)
Names = tuple[str, ...]
Change = Callable[[Forward], Forward]

FLOAT_BYTES = 4
_SECOND = (
    "strategy.tensor_parallel = True has cut layers over workers, through whose exchanges torch "
    "differentiates once: gradients of gradients would be others without a word. Set "
    "strategy.tensor_parallel = False, because data parallel can do this."
)


class TensorParallel(Strategy, name="tensor_parallel"):
    """Cuts named layers over the axis ``tp``; all its ranks see the same samples."""

    contract = Contract(
        phase=Phase.LAYOUT, touches=frozenset({"model", "agree"}), tolerance=1e-4, axis="tp"
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """Over how many ranks, and which layers are cut how."""

        tensor_parallel_degree: Annotated[int, AtLeast(1)] = 1
        """Ranks that share each cut layer."""
        tensor_init_seed: Annotated[int, AtLeast(-1)] = -1
        """Seed of the random numbers that these ranks have in common; -1 takes the first rank's."""
        plan: Annotated[str, OneOf(tuple(PLANS))] = ""
        """Cut the layers of a transformer or of its MLPs, recognised by names and shapes."""
        column: Names = ()
        """Linear layers cut by output features; patterns over ``named_modules()``."""
        row: Names = ()
        """Linear layers cut by input features: those that consume what ``column`` layers made."""
        vocabulary: Names = ()
        """Embeddings and output layers cut by the entries of the vocabulary."""
        sequence: Names = ()
        """Norms and dropouts whose activations are cut by position (dimension 1)."""

    leaves_state = True
    config: Config
    _random: SharedRandomness | None = None
    _cuts: dict[str, str] | None = None
    """Path -> how the layer there is cut, on this stage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.config.plan and not any(getattr(self.config, kind) for kind in KINDS):
            raise PlanError(
                "strategy.tensor_parallel = True would cut nothing: tensor_parallel_configs names "
                "no layer. Set tensor_parallel_configs = {'plan': 'transformer'} or 'mlp', or name "
                "layers in 'column' and 'row'."
            )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        degree, elsewhere = job.size("tp"), layer_kinds.with_descendants(job.elsewhere)
        chosen_cuts = chosen(model, self.config, degree, elsewhere)
        if degree == 1:
            return model
        if not carries(job.mesh, "tp", job.device):
            raise PlanError(
                "strategy.tensor_parallel = True exchanges activations between cards, which takes "
                "NCCL, and NCCL takes a card for each worker. Start as many workers as there are "
                "cards (fleetrun --gpus 0,1), or train on the CPU (fleetrun --gpus none)."
            )
        here = [module for module in model.modules() if module not in elsewhere]
        cuts = {module: kind for module, kind in chosen_cuts.items() if module not in elsewhere}
        paths = layer_kinds.paths_of(model)
        self._cuts = {paths[module]: kind for module, kind in chosen_cuts.items()}
        _tell(model, cuts, degree)
        _spread(model, here, cuts, job)
        layers = _Layers(model, set(here), cuts, job)
        for module, change in layers.changes():
            replace_forward(module, change)
        job.surround.append(layers.surround)
        seed = common_seed(self.config.tensor_init_seed, job.mesh["tp"], job.device)
        random = self._random = SharedRandomness(seed, job.device)
        replace_forward(model, random.around)
        job.around_recorded.append(random.begun)
        refuse_second_order(model, _SECOND, within=_has_parts)
        job.surround.append(lambda module: random.around if module is model else _unchanged)
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        if job.size("tp") == 1:
            return step
        group = job.mesh["tp"].get_group()

        return replace(step, agree=largest_over(step.agree, group))

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        try:
            chosen(subject.shape, cls.Config(plan="transformer"), ranks)
        except PlanError:  # its layers have other names, or do not divide
            return ()
        return ({"plan": "transformer"},)

    @override
    def share(self, share: Share) -> Share:
        if share.mesh["tp"] == 1 or share.subject.model is None:
            return share
        return spread(share, *self._dims(share))

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        if share.mesh["tp"] == 1 or share.subject.model is None:
            return pace
        trained = sum(1 for piece in share.held.values() if piece.trained)
        runs = share.run.micro_batches * share.run.batches
        chores = {"tensor_parallel_parameter": float(len(share.parameters) * runs)}
        if share.work is not None:
            chores["tensor_parallel_operator"] = float(share.work.dispatched.sum() * runs)
        # Parameters that are not cut are DTensors, too.
        return replace(
            pace.with_chores(**chores), dispatched_updates=max(pace.dispatched_updates, trained)
        )

    def _dims(self, share: Share) -> tuple[dict[str, int | None], Cuts]:
        """How parameters are cut, by their first names, and layers."""
        model, ranks = share.subject.shape, share.mesh["tp"]

        def found() -> tuple[dict[str, int | None], Cuts]:
            cuts = chosen(model, self.config, ranks)
            places = layer_kinds.places_of_parameters(model)
            return {name: _cut_dim(model, where, cuts) for name, where in places.items()}, cuts

        return share.subject.once(("cut over ranks", self.config, ranks), found)

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        if (ranks := share.mesh["tp"]) == 1:
            return known
        decided = f"{self.config.spelled('tensor_parallel_degree')} = {ranks}"
        if share.trace is not None:
            return (*known, *traffic(share, *self._dims(share), decided))
        number = "each float32 number"
        pairs = Exchange(
            collective="reduce-scatter and all-gather" if self.config.sequence else "all-reduce",
            what=f"{number} that enters or leaves a pair of column and row layers",
            when="in each forward, and of its gradient in each backward",
            sent_bytes=ring_bytes(FLOAT_BYTES, ranks),
            times=None,
            decided_by=decided,
            axis="tp",
        )
        words = replace(
            pairs,
            collective="all-reduce or all-gather",
            what=f"{number} that a vocabulary layer returns",
        )
        cut = self.config.vocabulary or self.config.plan in PLANS_WITH_VOCABULARY
        return (*known, pairs, words) if cut else (*known, pairs)

    @override
    def remarks(self) -> tuple[str, ...]:
        given = {kind: getattr(self.config, kind) for kind in ("plan", *KINDS)}
        words = [f"{kind} {value!r}" for kind, value in given.items() if value]
        return (
            f"Layers are cut over the axis tp by {', '.join(words)} (tensor_parallel_configs).",
        )

    @override
    def layout(self) -> Any:
        return self._cuts

    @override
    def state_dict(self) -> dict[str, Any]:
        """How many forwards have drawn random numbers."""
        return {} if self._random is None else {"forwards": self._random.count}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._random is not None:
            self._random.count = state["forwards"]


def _tell(model: nn.Module, cuts: Cuts, degree: int) -> None:
    paths = layer_kinds.paths_of(model)
    told = ", ".join(f"{paths[module]} ({kind})" for module, kind in cuts.items())
    logger.info("tensor_parallel cuts over %d ranks: %s", degree, told or "nothing on this stage")


def chosen(
    model: nn.Module,
    config: TensorParallel.Config,
    degree: int,
    elsewhere: Collection[nn.Module] = (),
) -> Cuts:
    """What is cut how: what the patterns name, and what the plan finds besides.

    Of modules ``elsewhere`` the weights are on other ranks, which look at them.
    """
    known = dict(model.named_modules(remove_duplicate=False))
    cuts: Cuts = {}
    for path, kind in _asked(known, config):
        label = f"{config.spelled(kind)} names {path!r}"
        reason = layer_kinds.why_not(known, path, kind, degree, elsewhere)
        if reason and known[path] not in elsewhere:
            raise PlanError(f"{label}, {reason}")
        if (other := cuts.setdefault(known[path], kind)) != kind:
            raise PlanError(
                f"{label}, which {config.spelled(other)} names, too, and a layer is cut in one "
                "way; keep one of the two."
            )
    named = len(cuts)
    for path, kind in layer_kinds.planned(known, config.plan):
        if not layer_kinds.why_not(known, path, kind, degree, elsewhere):
            cuts.setdefault(known[path], kind)
    if config.plan and len(cuts) == named:
        raise PlanError(
            f"{config.spelled('plan')} = {config.plan!r} cuts nothing of this model: no module has "
            "two linear layers of the names and sizes it looks for (such as fc1 and fc2, or q_proj "
            f"and o_proj, with features that {degree} divides). Name layers in 'column' and 'row'."
        )
    return cuts


def _asked(known: Layers, config: TensorParallel.Config) -> Iterator[tuple[str, str]]:
    """What the patterns name; one that names nothing is refused."""
    names = [path for path in known if path]
    for kind in KINDS:
        for pattern in getattr(config, kind):
            found = [path for path in names if fnmatchcase(path, pattern)]
            if not found:
                spelled = config.spelled(kind)
                message = f"{spelled} names {pattern!r}, and the model has no such submodule"
                raise PlanError(option.unknown(message, pattern, names))
            yield from ((path, kind) for path in found)


def _spread(model: nn.Module, here: Collection[nn.Module], cuts: Cuts, job: Job) -> None:
    """Make every parameter a DTensor, and all ranks start equal."""
    # Loaded here: distributed tensors take a second that jobs which cut nothing do not pay.
    from fleetx.strategies.tensor_parallel import cut_parameters

    mesh, present = job.mesh["tp"], set(here)
    for places in layer_kinds.places_of_parameters(model).values():
        if any(owner in present for owner, _ in places):
            dim = _cut_dim(model, places, cuts)
            cut_parameters.cut_parameter(places, dim, mesh, job.device)
    cut_parameters.accept_whole_tensors(model, here)
    copy_from_first_rank(cut_parameters.moved_buffers(here, job.device), mesh.get_group())


def _cut_dim(model: nn.Module, places: list[tuple[nn.Module, str]], cuts: Cuts) -> int | None:
    """The dimension that all layers with that parameter are cut along.

    A module of another kind that has it, too, such as a head with the bias of its last layer, has
    no say: where it computes with it, it sees the whole.
    """
    layers = [(m, n) for m, n in places if m in cuts or isinstance(m, nn.Linear | nn.Embedding)]
    wanted = {layer_kinds.cut_dim(cuts.get(owner), name) for owner, name in layers} or {None}
    if len(wanted) > 1:
        paths = layer_kinds.paths_of(model)
        names = " and ".join(repr(".".join(filter(None, (paths[m], n)))) for m, n in places)
        raise PlanError(
            f"{names} are one parameter, and tensor_parallel_configs cuts it in two ways; name all "
            "of these layers in 'vocabulary', or none of them."
        )
    return wanted.pop()


def _has_parts(module: nn.Module) -> bool:
    """Whether its parameters are spread, as those of a copy are, too."""
    return any(hasattr(parameter, "full_tensor") for parameter in module.parameters())


def _unchanged(forward: Forward) -> Forward:
    return forward


class _Layers:
    """The modules of this rank by how they see parameters and tensors."""

    def __init__(self, model: nn.Module, here: Collection[nn.Module], cuts: Cuts, job: Job) -> None:
        from fleetx.strategies.tensor_parallel.regions import Border

        self._here, self._cuts = here, cuts
        self._border = Border(job.mesh["tp"])
        descendants = layer_kinds.with_descendants
        self._between = descendants(layer_kinds.around_positions(model, cuts, job.opened))
        regions = descendants(layer_kinds.regions(model, cuts, job.opened))
        self._inside = regions | self._between
        # What keeps statistics or is one kernel needs plain tensors.
        alone = (m for m in here if m in self._inside and isinstance(m, layer_kinds.ALONE))
        self._alone = descendants(alone)

    def changes(self) -> Iterator[tuple[nn.Module, Change]]:
        """How each module runs from now on."""
        from fleetx.strategies.tensor_parallel.parameter_views import (
            plain_parameters,
            settled_parameters,
        )

        border = self._border
        for module, kind in self._cuts.items():
            row = border.row(by_position=module in self._between)
            ways = {"column": border.column, "row": row, "vocabulary": border.gathered}
            yield module, ways.get(kind, border.sequence)
        for module in filter(layer_kinds.runs, self._here):
            if module in self._inside:
                alone = isinstance(module, layer_kinds.ALONE)
                yield module, (plain_parameters if alone else settled_parameters)(module.modules())
                if alone:
                    yield module, border.alone
                yield module, border.around
            elif not isinstance(module, nn.Sequential):
                outside = [m for m in module.modules() if m not in self._inside]
                yield module, plain_parameters(outside)

    def surround(self, module: nn.Module) -> Change:
        """What must be around a module that is compiled: all that its code sees exchanged."""
        from fleetx.strategies.tensor_parallel.parameter_views import (
            plain_parameters,
            settled_parameters,
        )

        held = [m for m in module.modules() if m in self._here]
        settled = settled_parameters(m for m in held if m in self._inside)
        plain = plain_parameters(m for m in held if m in self._alone or m not in self._inside)

        def change(forward: Forward) -> Forward:
            return settled(plain(self._border.surround(forward)))

        return change
