"""``PipelineLayer``: a model as a list of layers, over the workers of a pipeline."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph
from typing_extensions import override

import fleetx
from fleetx import roles
from fleetx.api import session
from fleetx.compat import objects, unique_names
from fleetx.compat.distribution import DistributedOptimizer
from fleetx.compat.hybrid import degrees, hybrid_group
from fleetx.compat.layer_descs import LayerDesc, SharedLayerDesc
from fleetx.compat.notes import note
from fleetx.compat.paddle.distributed.fleet.utils.recomputing import recompute
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.paddle.optimizer.lr import LRScheduler
from fleetx.compat.plain import plain
from fleetx.compat.segments import segments
from fleetx.compat.tensors import wrap
from fleetx.graph.part import Part, any_inputs

SHARED = "shared_layers"


class _Run:
    """Consecutive layers as one function; one value, or a tuple of them, goes through."""

    def __init__(self, functions: Sequence[Callable[..., Any]], interval: int = 0) -> None:
        self._functions, self._interval = list(functions), interval

    def __call__(self, *given: Any) -> Any:
        """One layer after the other, in pieces that are computed again where that was asked."""
        size = self._interval
        made: Any = given[0] if len(given) == 1 else given
        if not size:
            for function in self._functions:
                made = function(made)
            return made
        for start in range(0, len(self._functions), size):
            inputs = made if isinstance(made, tuple) else (made,)
            piece = self._functions[start : start + size]
            run = _Run(piece)
            made = recompute(run, *inputs) if _worth(piece, inputs) else run(*inputs)
        return made


def _worth(functions: Sequence[Any], inputs: Sequence[Any]) -> bool:
    """Whether something is kept for a backward there."""
    moved = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    return moved and any(isinstance(f, nn.Module) and list(f.parameters()) for f in functions)


class _Segment(Part):
    """The layers of one stage, as a part that fleetx sends through a pipeline.

    It is no graph: how many tensors it sends is known once it has run.
    """

    def __init__(self, run: _Run, modules: frozenset[str], *, first: bool) -> None:
        vars(self).update(
            graph=Graph(),
            inputs=("input",) if first else (),
            receives=(),
            modules=modules,
            attributes=frozenset(),
            modes=(),
            check=any_inputs,
            run=run,
            sent=0,
        )

    @property
    @override
    def sends(self) -> tuple[str, ...]:
        """A name for each tensor that went on."""
        return tuple(f"value {number}" for number in range(vars(self)["sent"]))

    @functools.cached_property
    @override
    def code(self) -> Callable[..., Any]:
        """The layers as a function of what comes in."""
        return self._call

    def _call(self, model: nn.Module, *given: Any) -> Any:
        made = plain(vars(self)["run"](*wrap(given)))
        sent = made if isinstance(made, tuple) else (made,)
        vars(self)["sent"] = len(sent)
        return sent


class _Last(_Segment):
    """That of the last stage, whose outputs go to the loss as they are."""

    @override
    def _call(self, model: nn.Module, *given: Any) -> Any:
        return plain(vars(self)["run"](*wrap(given)))


class _Whole(nn.Module):
    """All layers, with what fleetx asks a model that is cut already."""

    def __init__(self, interval: int) -> None:
        super().__init__()
        self.meta: dict[str, Any] = {}
        self.functions: list[Callable[..., Any]] = []
        self.places: list[str] = []
        """The path of each layer; empty for a function."""
        self.shared: dict[str, nn.Module] = {}
        self._interval = interval
        setattr(self, SHARED, nn.ModuleDict())

    def append(self, desc: Any) -> None:
        """Make the next layer."""
        number = str(len(self.functions))
        if isinstance(desc, SharedLayerDesc):
            if desc.layer_name not in self.shared:
                self.shared[desc.layer_name] = desc.build_layer()
                self.get_submodule(SHARED).add_module(desc.layer_name, self.shared[desc.layer_name])
            layer: Any = self.shared[desc.layer_name]
            function = desc.forward_func
            self.functions.append(layer if function is None else functools.partial(function, layer))
            self.places.append(f"{SHARED}.{desc.layer_name}")
            return
        layer = desc.build_layer() if isinstance(desc, LayerDesc) else desc
        self.functions.append(layer)
        self.places.append(number if isinstance(layer, nn.Module) else "")
        if isinstance(layer, nn.Module):
            self.add_module(number, layer)

    def cut(self, bounds: Sequence[int]) -> None:
        """Say where the stages begin."""
        if len(bounds) == 2:
            return
        kinds = [*([_Segment] * (len(bounds) - 2)), _Last]
        self.meta["parts"] = [
            kind(
                self.run(start, end),
                frozenset(place for place in self.places[start:end] if place),
                first=start == 0,
            )
            for kind, (start, end) in zip(kinds, pairwise(bounds), strict=True)
        ]

    def run(self, start: int, end: int) -> _Run:
        """Some of the layers as one function."""
        return _Run(self.functions[start:end], self._interval)

    @override
    def forward(self, input: Any) -> Any:
        """All of them, on a worker that has all."""
        return plain(self.run(0, len(self.functions))(wrap(input)))


class PipelineLayer(Layer):
    """Layers one after the other, of which this worker has those of its stage.

    Every worker makes all of them, so that all begin with the same weights; fleetx lets go of those
    of other workers.
    """

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        layers: Sequence[Any],
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Callable[..., Any] | None = None,
        seg_method: Any = "uniform",
        recompute_interval: int = 0,
        recompute_ctx: Any = None,
        num_virtual_pipeline_stages: int | None = None,
    ) -> None:
        super().__init__()
        stages = _stages(num_stages)
        chunks = int(num_virtual_pipeline_stages or 1) if stages > 1 else 1
        bounds = segments(layers, stages * chunks, seg_method)
        stage = hybrid_group().get_stage_id() if stages > 1 else 0
        owned = [bounds[n : n + 2] for n in range(stage, stages * chunks, stages)]
        whole = _Whole(int(recompute_interval))
        for number, desc in enumerate(layers):
            with _names(any(start <= number < end for start, end in owned)):
                whole.append(desc)
        whole.cut(bounds)
        vars(self).update(
            _loss_fn=loss_fn,
            _whole=whole,
            _num_stages=stages,
            _stage_id=stage,
            _num_virtual_pipeline_stages=chunks,
            segment_parts=bounds,
            _owned=owned,
            run_function=[f for start, end in owned for f in whole.functions[start:end]],
        )
        self._hold(whole, owned)

    def _hold(self, whole: _Whole, owned: Sequence[Sequence[int]]) -> None:
        """Register this worker's layers under Paddle's names."""
        shared = nn.ModuleDict()
        setattr(self, SHARED, shared)
        for start, end in owned:
            holder: nn.Module = self
            if len(owned) > 1:
                holder = Layer("pipeline_layer_chunk")
                self.add_module(str(start), holder)
            for number in range(start, end):
                name = str(number - start if len(owned) > 1 else number)
                place = whole.places[number]
                if place.startswith(f"{SHARED}."):
                    shared.add_module(place.partition(".")[2], whole.get_submodule(place))
                elif place:
                    holder.add_module(name, whole.get_submodule(place))

    @override
    def train(self, mode: bool = True) -> "PipelineLayer":
        """Of all layers."""
        super().train(mode)
        if "_whole" in vars(self):
            vars(self)["_whole"].train(mode)
        return self

    @override
    def forward(self, input: Any, chunk_id: int | None = None) -> Any:
        """This worker's layers, one after the other."""
        start, end = vars(self)["_owned"][chunk_id or 0]
        return vars(self)["_whole"].run(start, end)(input)

    @property
    def loss_fn(self) -> Callable[..., Any] | None:
        """Outputs and labels -> loss."""
        found: Callable[..., Any] | None = vars(self)["_loss_fn"]
        return found

    def get_num_virtual_stages(self) -> int:
        """How many stages a worker has."""
        return int(vars(self)["_num_virtual_pipeline_stages"])

    def get_stage_from_index(self, layer_idx: int) -> int:
        """The worker of the pipeline that has a layer."""
        bounds = vars(self)["segment_parts"]
        part = next(n for n, (a, b) in enumerate(pairwise(bounds)) if a <= layer_idx < b)
        return int(part % vars(self)["_num_stages"])

    def save_state_dict(self, path: str) -> None:
        """Write this worker's layers, a file each."""
        if hybrid_group().get_data_parallel_rank() != 0:
            return
        Path(path).mkdir(parents=True, exist_ok=True)
        for name, layer in self._files():
            objects.save(layer.state_dict(), str(Path(path) / name))

    def set_state_dir(self, path: str) -> None:
        """Read this worker's layers back."""
        if not Path(path).is_dir():
            raise FileNotFoundError(f"there is no folder {path!r}; save_state_dict() makes it.")
        for name, layer in self._files():
            layer.set_state_dict(objects.load(str(Path(path) / name)))

    def _files(self) -> Iterator[tuple[str, Any]]:
        """Names of files by the numbers of layers, as Paddle calls them."""
        owned: list[list[int]] = vars(self)["_owned"]
        functions = vars(self)["_whole"].functions
        for chunk, (start, end) in enumerate(owned):
            for number in range(start, end):
                if hasattr(functions[number], "state_dict"):
                    middle = f"-virtual_pp_stage_{chunk:02d}" if len(owned) > 1 else ""
                    rank = hybrid_group().get_model_parallel_rank()
                    name = f"layer_{number:02d}{middle}-tensor_{rank:02d}-model_states.pdparams"
                    yield name, functions[number]


def _stages(asked: int | None) -> int:
    """Workers of the pipeline; one where there is no job."""
    if not (session.begun() and roles.identity().is_collective):
        return 1
    stages = degrees()["pp"]
    if asked is not None and stages > 1 and asked != stages:
        raise ValueError(
            f"PipelineLayer(num_stages={asked}), and hybrid_configs['pp_degree'] is {stages}; give "
            "the same number, or leave num_stages out."
        )
    return stages


@contextmanager
def _names(mine: bool) -> Iterator[None]:
    """Count the names of this worker's layers alone, as if it made no others."""
    if mine:
        yield
    else:
        with unique_names.guard():
            yield


class PipelineModel(Layer):
    """What ``fleet.distributed_model`` makes of a ``PipelineLayer``."""

    def __init__(self, layers: PipelineLayer, fleet: Any) -> None:
        super().__init__("pipeline_model")
        strategy = session.current("distributed_model").strategy
        chunks = layers.get_num_virtual_stages()
        if chunks > 1:
            strategy.pipeline_configs = {"schedule_mode": "interleaved", "stages_per_rank": chunks}
        whole = vars(layers)["_whole"]
        vars(self)["_inner"] = fleetx.distributed_model(whole, criterion=_criterion(layers))
        self._layers = layers

    @override
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """That of the layers, where one worker has all of them."""
        return wrap(vars(self)["_inner"](*inputs, **kwargs))

    @override
    def train(self, mode: bool = True) -> "PipelineModel":
        """Of all layers."""
        super().train(mode)
        if "_inner" in vars(self):
            vars(self)["_inner"].train(mode)
        return self

    def train_batch(
        self,
        data: Any,
        optimizer: Any = None,
        lr_scheduler: LRScheduler | None = None,
        scaler: Any = None,
    ) -> Any:
        """Forward, backward and update for one batch of inputs and labels; the mean loss."""
        if scaler is not None:
            note("train_batch(scaler=...)", "set strategy.amp, which scales the loss by itself.")
        if isinstance(optimizer, DistributedOptimizer):
            optimizer._set_rates(optimizer.distributed)
        self.train()
        loss = vars(self)["_inner"].train_batch(_batch(data))
        if lr_scheduler is not None:
            lr_scheduler.step()
        return wrap(loss.detach().reshape(1))

    def eval_batch(self, data: Any, compute_loss: bool = True) -> Any:
        """The loss, or the outputs, of one batch."""
        self.eval()
        found = vars(self)["_inner"].eval_batch(_batch(data), compute_loss=compute_loss)
        return wrap(found.reshape(1) if compute_loss and isinstance(found, Tensor) else found)


def _batch(data: Any) -> Any:
    """Inputs, which are one argument of the first layer, and labels."""
    inputs, labels = next(data) if isinstance(data, Iterator) else data
    return (_tuple(plain(inputs)),), _tuple(plain(labels))


def _tuple(inputs: Any) -> Any:
    return tuple(inputs) if isinstance(inputs, list) else inputs


def _criterion(layers: PipelineLayer) -> Callable[[Any, Any], Tensor] | None:
    function = layers.loss_fn
    if function is None:
        return None

    def loss(outputs: Any, labels: Any) -> Tensor:
        found: Tensor = function(wrap(outputs), wrap(labels))
        return torch.mean(plain(found))

    return loss
