"""The state of a run by the names of the whole model, of which each worker has a part."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from fleetx import roles
from fleetx.api.extra_state import extra_states, load_extra_states
from fleetx.api.optimizer import DistributedOptimizer
from fleetx.api.saved_layout import layout_of, options_of
from fleetx.comm.held_gradients import all_waiting, is_agreed, let_wait
from fleetx.comm.local import local
from fleetx.engine.engine import Engine
from fleetx.engine.saved_names import is_extra
from fleetx.io.agreement import CheckpointError
from fleetx.io.moved_keys import FIRST, MEAN, Key
from fleetx.io.random_state import random_state, set_random_state
from fleetx.io.training_state import MARK, STRATEGIES, leaves, tree
from fleetx.plan.strategy import Strategy

if TYPE_CHECKING:
    from fleetx.io.saved_tensors import Saved

GRADIENTS = f"{MARK}gradients"
"""Before the name of a parameter whose gradient waits for the end of its group of batches."""
WAITING = "gradients"
"""The key under which strategies keep the same, which is theirs in one layout alone."""
GIVEN = f"{MARK}run"
"""What is not bound to a parameter: parts, numbers, random states, counters of strategies."""


@dataclass(frozen=True)
class Entry:
    """A tensor to be saved under a key, or the place of one that is loaded."""

    key: Key
    tensor: Tensor


class RunState:
    """What a model, its optimizer and its strategies have to keep."""

    def __init__(self, engine: Engine, optimizer: DistributedOptimizer) -> None:
        self.engine = engine
        self.optimizer = optimizer
        self._job = engine.job

    # What it is called, and where it lies.

    @cached_property
    def _here(self) -> dict[str, nn.Parameter]:
        """The parameters of this worker by their first names."""
        return self.engine.held()

    @cached_property
    def _names_here(self) -> dict[str, str]:
        """First name -> the name by which this worker's strategies know the parameter."""
        named = [name for name, _ in self._job.model.named_parameters()]
        return {self.engine.first_name(name): name for name in named}

    @cached_property
    def _borrowed(self) -> set[str]:
        return {self.engine.first_name(name) for name in self._job.borrowed}

    @property
    def _strategies(self) -> Iterable[Strategy]:
        return self.engine.plan.strategies

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Workers along each axis; those of a job with servers are replicas, as along dp."""
        axes = dict(self.engine.plan.mesh)
        return axes if roles.identity().is_collective else {**axes, "dp": roles.worker_num()}

    @cached_property
    def place(self) -> dict[str, int]:
        """This worker's coordinate along each axis."""
        if self._job.mesh.size() > 1:
            return {axis: self._job.mesh[axis].get_local_rank() for axis in self.sizes}
        alone = dict.fromkeys(self.sizes, 0)
        return {**alone, "dp": roles.worker_index()} if self.sizes["dp"] > 1 else alone

    @property
    def share(self) -> int:
        """Which share of the data this worker works on."""
        return self.place["dp"] * self.sizes["sharding"] + self.place["sharding"]

    @property
    def shares(self) -> int:
        """Into how many shares the data is dealt."""
        return self.sizes["dp"] * self.sizes["sharding"]

    def layout(self) -> dict[str, Any]:
        """How it lies over workers; with the same layout everything goes back bit for bit."""
        assert self._job.optimizer is not None
        found: dict[str, Any] = json.loads(json.dumps(layout_of(self.engine, self._job.optimizer)))
        return found

    def options(self) -> dict[str, list[str]]:
        """Which options of the optimizer each parameter has, by first names."""
        groups = self.optimizer.param_groups
        return {self.engine.names[p]: options_of(g) for g in groups for p in g["params"]}

    def tied(self) -> dict[str, str]:
        """Names under which the plain model saves a parameter that is kept under another one."""
        named = {name: self.engine.first_name(name) for name in self.engine.saved_names}
        return {name: first for name, first in named.items() if name != first}

    # Saving.

    def entries(self) -> Iterator[Entry]:
        """All that is bound to a name of the model."""
        yield from self._weights()
        yield from self._optimizer_state()
        yield from self._of_strategies()
        if self._is_waiting:
            yield from self._gradients()

    def given(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """What is bound to no name, and what the caller keeps."""
        state = self._job.model.state_dict()
        return {
            **extra,
            "random": random_state(self._job.device),
            "layout": json.dumps(self.layout()),
            "moved": self.optimizer.moved_numbers(),
            "strategies": {s.name: kept for s in self._strategies if (kept := self._counters(s))},
            "extra": extra_states(self.engine, state) if any(map(is_extra, state)) else {},
        }

    @property
    def _is_waiting(self) -> bool:
        return any(strategy.waiting() for strategy in self._strategies)

    @property
    def _in_step(self) -> bool:
        return all(strategy.in_step() for strategy in self._strategies)

    @property
    def _drifts(self) -> bool:
        return any(strategy.drifts for strategy in self._strategies)

    def _weights(self) -> Iterator[Entry]:
        weights = "" if self._in_step else MEAN
        # While gradients wait for an update, running statistics are each worker's own, too.
        buffers = weights or (FIRST if self._is_waiting or self._drifts else "")
        for name, tensor, trained in self._named():
            if trained and name in self._borrowed:
                continue
            how = weights if trained else buffers
            if not tensor.is_floating_point() and how:
                how = FIRST
            yield Entry(self._key(name, how), tensor)

    def _named(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Everything that the model saves and this worker has; tied parameters once."""
        known = {id(p): name for name, p in self._here.items()}
        yield from ((name, p.detach(), True) for name, p in self._here.items())
        for name, value in self._job.model.state_dict(keep_vars=True).items():
            if isinstance(value, Tensor) and not is_extra(name) and id(value) not in known:
                yield name, value.detach(), False

    def _optimizer_state(self) -> Iterator[Entry]:
        names = [self.engine.names[p] for p in self.optimizer.parameters]
        for number, kept in self.optimizer.state_dict()["state"].items():
            name = names[number]
            if name in self._borrowed:
                continue
            for key, value in kept.items():
                for path, tensor in leaves(f"{name}{MARK}{key}", value):
                    yield Entry(self._key(path, _combined(tensor) if self._drifts else ""), tensor)

    def _of_strategies(self) -> Iterator[Entry]:
        for strategy in self._strategies:
            for path, tensor in leaves("", strategy.state_dict()):
                if (name := self._parameter(path, tensor)) is None:
                    continue
                top, first = path.split(MARK)[1], self.engine.first_name(name)
                if top == WAITING or first in self._borrowed:
                    continue
                full = f"{STRATEGIES}{MARK}{strategy.name}{path[: -len(name)]}{first}"
                how = MEAN if top in strategy.own else ""
                yield Entry(self._key(full, how), self._as_laid_out(tensor, first))

    def _counters(self, strategy: Strategy) -> dict[str, Any]:
        """What a strategy keeps that is bound to no parameter."""
        found = dict(leaves("", strategy.state_dict()))
        mine = {path: t for path, t in found.items() if self._parameter(path, t) is None}
        kept: dict[str, Any] = tree({f"state{path}": t for path, t in mine.items()})["state"]
        return {key: value for key, value in kept.items() if key != WAITING}

    def _parameter(self, path: str, tensor: Tensor) -> str | None:
        """Whose tensor it is that a strategy keeps, if it is one of a parameter."""
        name = path.rpartition(MARK)[2]
        parameter = self._here.get(self.engine.first_name(name))
        if parameter is None or "#" in name:
            return None
        return name if tensor.shape in {parameter.shape, local(parameter).shape} else None

    def _as_laid_out(self, tensor: Tensor, name: str) -> Tensor:
        """Spread as the parameter, where it is the part of this worker alone."""
        parameter: Any = self._here[name]
        if not hasattr(parameter, "to_local") or tensor.shape == parameter.shape:
            return tensor
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(
            tensor,
            parameter.device_mesh,
            parameter.placements,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def _gradients(self) -> Iterator[Entry]:
        for name, gradient in all_waiting(self._job.model).items():
            first = self.engine.first_name(name)
            placed = _placed_like(gradient, self._here[first])
            # Copies of a tied parameter on several stages add theirs up at the update.
            tied = self.place["pp"] if first in self._borrowed else None
            how = "" if is_agreed(placed) else MEAN
            yield Entry(self._key(f"{GRADIENTS}{MARK}{first}", how, tied), placed)

    def _key(self, path: str, how: str = "", home: int | None = None) -> Key:
        return Key(path, how, self.share if how else 0, home)

    # Loading.

    def check(self, saved: "Saved", given: Mapping[str, Any]) -> None:
        """Refuse what is not of this model, this update rule or these strategies."""
        missing = sorted(name for name, _, _ in self._named() if name not in saved.paths)
        weights = {path for path in saved.paths if MARK not in path}
        strange = sorted(weights - {self.engine.first_name(n) for n in self.engine.saved_names})
        if missing or strange:
            raise CheckpointError(
                f"the checkpoint is not that of this model: it lacks {missing[:3]} and has unknown "
                f"{strange[:3]}; load it into the model that was saved."
            )
        for name, tensor, _ in self._named():
            if (shape := saved.kind(name).shape) != tensor.shape:
                raise CheckpointError(
                    f"{name!r} has the shape {list(shape)} in the checkpoint and "
                    f"{list(tensor.shape)} in the model; load it into the model that was saved."
                )
        self.optimizer.check_strategies(given["strategies"], moved=True)

    def take(self, saved: "Saved", given: Mapping[str, Any], *, exactly: bool) -> None:
        """Take everything back but random numbers.

        Args:
            saved: the tensors of all workers.
            given: what is bound to no name, of the worker whose place this one takes.
            exactly: whether the layout is the same, so that each worker's own goes back to it.
        """
        share = self.share if exactly else None
        reader = _Taking(saved, share, self.place["pp"])
        with torch.no_grad():
            held = {name: tensor for name, tensor, _ in self._named()}
            reader.fill(held)
            self._job.brought(held)
            load_extra_states(self.engine, given["extra"])
            self.optimizer.take_moved(self._optimizer_of(reader, given))
            if roles.identity().is_collective:  # servers are told numbers once, by the first worker
                self.optimizer.take_numbers(given.get("moved", []))
            gradients = self._gradients_of(reader)
            let_wait(self._job.model, gradients)
        if not gradients:
            self.optimizer.zero_grad()

    def draw_as(self, given: Mapping[str, Any]) -> None:
        """Let random numbers go on; last of all, for whoever takes a state back may draw some."""
        set_random_state(given["random"], self._job.device)

    def _optimizer_of(self, reader: "_Taking", given: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name in {self.engine.names[p] for p in self.optimizer.parameters}:
            for path in reader.saved.below(name):
                found[path] = reader.place(path, self._here[name])
        reader.fill(found)
        state, numbers = tree(found), {}
        for number, parameter in enumerate(self.optimizer.parameters):
            if (kept := state.get(self.engine.names[parameter])) is not None:
                numbers[number] = kept
        like = self.optimizer.state_dict()
        return {**like, "state": numbers, "strategies": self._strategies_of(reader, given)}

    def _strategies_of(self, reader: "_Taking", given: Mapping[str, Any]) -> dict[str, Any]:
        planned = {strategy.name for strategy in self._strategies}
        states = {n: dict(kept) for n, kept in given["strategies"].items() if n in planned}
        found, ways = {}, {}
        for path in reader.saved.below(STRATEGIES):
            strategy, *way, first = path.removeprefix(STRATEGIES + MARK).split(MARK)
            if first in self._here and strategy in planned:
                found[path] = reader.place(path, self._here[first])
                ways[path] = [strategy, *way, self._names_here[first]]
        reader.fill(found)
        for path, way in ways.items():
            branch: dict[str, Any] = states
            for step in way[:-1]:
                branch = branch.setdefault(step, {})
            branch[way[-1]] = found[path]
        return states

    def _gradients_of(self, reader: "_Taking") -> dict[str, Tensor]:
        found = {}
        for path in reader.saved.below(GRADIENTS):
            first = path.rpartition(MARK)[2]
            if first not in self._here:
                continue
            if reader.own is None and first in self._borrowed:
                continue  # what all copies have together is given to the one that counts
            if not reader.saved.terms(path, reader.own, reader.stage):
                continue
            whole = reader.own is not None and reader.saved.is_own(path)
            found[path] = reader.place(path, self._here[first], unspread=whole)
        reader.fill(found)
        return {self._names_here[path.rpartition(MARK)[2]]: t for path, t in found.items()}


@dataclass(frozen=True)
class _Taking:
    """Reads what this worker needs: its own, or what all shares are worth together."""

    saved: "Saved"
    own: int | None
    """The share whose own tensors are read; None for what all have together."""
    stage: int

    def place(self, path: str, parameter: Tensor, *, unspread: bool = False) -> Tensor:
        """Room for a tensor that lies as its parameter does, or whole where it has another shape.

        Args:
            path: what is read.
            parameter: whose it is.
            unspread: whether it waits whole on each of the ranks over which FSDP spreads it.
        """
        kind = self.saved.kind(path)
        if kind.shape != parameter.shape:
            return torch.empty(kind.shape, dtype=kind.dtype)
        if unspread and is_agreed(parameter):
            return _unspread(parameter, kind.dtype)
        return torch.empty_like(parameter, dtype=kind.dtype).detach()

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read into tensors, by the paths under which they were saved."""
        self.saved.fill(targets, own=self.own, stage=self.stage)


def _combined(tensor: Tensor) -> str:
    """Numbers of several shares have a mean; counters and flags have not."""
    return MEAN if tensor.is_floating_point() and tensor.dim() else FIRST


def _placed_like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Spread as its parameter; a sum that ranks have not yet added up is added up."""
    spread: Any = gradient
    laid: Any = parameter
    if not hasattr(spread, "placements") or spread.device_mesh != laid.device_mesh:
        return gradient
    placed: Tensor = spread.redistribute(placements=laid.placements)
    return placed


def _unspread(parameter: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for what FSDP spreads, whole along the ranks that share the data."""
    spread: Any = parameter
    names = spread.device_mesh.mesh_dim_names
    if "tp" not in names:
        return torch.empty(parameter.shape, dtype=dtype, device=parameter.device)
    from torch.distributed.tensor import Shard, empty

    at = names.index("tp")
    placement = spread.placements[at]
    plain = Shard(placement.dim) if placement.is_shard() else placement
    return empty(
        *parameter.shape, dtype=dtype, device_mesh=spread.device_mesh["tp"], placements=[plain]
    )
