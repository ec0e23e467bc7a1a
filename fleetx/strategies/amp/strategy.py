"""Mixed precision: the model computes in 16 bits, its weights and their update keep 32."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fleetx.comm.held_gradients import whole_waiting
from fleetx.graph.operator_casts import (
    Casts,
    OperatorCasts,
    cast,
    one_of,
    parameters_named,
)
from fleetx.graph.operator_lists import PRODUCTS, two_lists
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.exchange import Exchange, ring_bytes
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.mesh import AXES
from fleetx.plan.option import Above, AtLeast, Below, OneOf
from fleetx.plan.run import Run
from fleetx.plan.share import Share
from fleetx.plan.shortened_rows import refuse_shortened_rows
from fleetx.plan.step import Step
from fleetx.plan.strategy import Plan, Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.amp.loss_scaling import Growth, LossScale, advance_, multiply_, unscale_
from fleetx.strategies.amp.made_weights import make_weights_in_float32
from fleetx.torch_internals import ConvBase

logger = logging.getLogger(__name__)
Count = Annotated[int, AtLeast(1)]
Names = tuple[str, ...]

_GROWTH = ("incr_every_n_steps", "decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio")
"""The options that a loss scale which does not change has no use for."""
_SCALING = ("init_loss_scaling", "use_dynamic_loss_scaling", *_GROWTH)
"""Those of float16 alone."""
FLAG_BYTES = 4


class Amp(Strategy, name="amp"):
    """Runs the forward in 16 bits and skips, on all ranks, an update that overflowed."""

    contract = Contract(
        phase=Phase.PRECISION,
        touches=frozenset({"model", "scale", "wire", "ready", "resume", "update"}),
        tolerance=2e-2,
    )

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """The loss scale of float16, which operators compute how, and the number format."""

        init_loss_scaling: Annotated[float, Above(0)] = 32768.0
        """The factor on the loss at the start, for float16."""
        incr_every_n_steps: Count = 1000
        """Updates without overflow after which the scale grows."""
        decr_every_n_nan_or_inf: Count = 2
        """Overflows in a row after which the scale shrinks."""
        incr_ratio: Annotated[float, Above(1)] = 2.0
        """The factor by which it grows."""
        decr_ratio: Annotated[float, Above(0), Below(1)] = 0.5
        """The factor by which it shrinks, never below 1."""
        use_dynamic_loss_scaling: bool = True
        """False keeps the scale at ``init_loss_scaling``."""
        custom_white_list: Names = ()
        """Operators that run in 16 bits although they would not."""
        custom_black_list: Names = ()
        """Operators that run in float32 although they would not."""
        custom_black_varnames: Names = ()
        """Parameters or submodules, or patterns of them, whose operators run in float32."""
        use_pure_fp16: bool = False
        """All operators but batch norm run in float16, on float16 copies of the parameters."""
        use_fp16_guard: bool = True
        """For the pure modes: 16 bits end with the model; False lets them out to the criterion."""
        use_optimizer_fp16: bool = False
        """Refused: the update stays in float32."""
        use_pure_bf16: bool = False
        """As ``use_pure_fp16``, with bfloat16."""
        dtype: Annotated[str, OneOf(("float16", "bfloat16"))] = "float16"
        """The 16-bit format of the mixed mode; bfloat16 needs no loss scale and has none."""

        @override
        def consistent(self) -> None:
            """Refuse unknown operators, operators on both lists, and two formats at once."""
            self.lists()
            if self.use_optimizer_fp16:
                raise ValueError(
                    "amp_configs['use_optimizer_fp16'] = True would update weights in 16 bits, "
                    "where a change below a 2000th of a weight is lost; leave it False."
                )
            if self.use_pure_fp16 and (self.use_pure_bf16 or self.dtype == "bfloat16"):
                raise ValueError(
                    "amp_configs asks for float16 (use_pure_fp16) and for bfloat16 (use_pure_bf16 "
                    "or dtype), and the model computes in one of them; keep one."
                )

        def lists(self) -> tuple[frozenset[str], frozenset[str]]:
            """The torch functions of the white and of the black list."""
            return two_lists("amp_configs", self.custom_white_list, self.custom_black_list)

        @property
        def pure(self) -> bool:
            """Whether parameters, too, are seen in 16 bits."""
            return self.use_pure_fp16 or self.use_pure_bf16

        @property
        def low(self) -> torch.dtype:
            """The 16-bit format."""
            brain = self.use_pure_bf16 or self.dtype == "bfloat16"
            return torch.bfloat16 if brain else torch.float16

    config: Config
    _state: LossScale | None = None
    """The loss scale; None when nothing is scaled."""
    _overflow: Tensor
    """Whether a gradient of the open batch was not finite on this rank."""
    _skipped: Tensor
    """How many updates were left out, on the device, where a captured step decides alone."""

    @override
    def examine(self, plan: Plan) -> None:
        half = self.config.low == torch.float16
        dynamic = half and self.config.use_dynamic_loss_scaling
        why = "is not dynamic" if half else "of bfloat16 is always 1"
        for name in () if dynamic else _GROWTH if half else _SCALING:
            normal = option.default(type(self.config), name)
            if (value := getattr(self.config, name)) != normal:
                raise PlanError(
                    f"{self.config.spelled(name)} = {value!r} has no effect, because the loss "
                    f"scale {why}. Leave it at {normal!r}."
                )

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        _check_weights(model, job)
        self._check_guard()
        self._warn(model, job)
        if self.config.pure:
            job.wire = self.config.low
            make_weights_in_float32(model, self.config.low)
        if self.config.low == torch.float16:
            self._state = LossScale.starting_at(self.config.init_loss_scaling, job.device)
            self._skipped = torch.zeros((), device=job.device)
        held = self._held(model, job)
        if self.config.pure:
            refuse_shortened_rows(
                model,
                f"a pure mode of amp_configs gives it a copy in {self.config.low}",
                ", or name it in amp_configs['custom_black_varnames']",
                spared={module for module, _ in held},
            )
        job.contexts.extend(self._contexts(job.device, held))
        replace_forward(model, self._between_formats)
        return model

    @override
    def step(self, step: Step, job: Job) -> Step:
        state = self._state
        if state is None:
            return step

        def scale(loss: Tensor) -> Tensor:
            return step.scale(loss) * state.scale

        def resume() -> None:
            # What was true when it was seen, and may have been changed since, counts as much as
            # what another backward adds to it.
            multiply_(chain(*_gradients(job), whole_waiting(job.model)), state.scale)
            step.resume()

        ready, update = self._unscaling(step, job, state), self._guarded(step, job, state)
        return replace(step, scale=scale, ready=ready, resume=resume, update=update)

    def _unscaling(self, step: Step, job: Job, state: LossScale) -> Callable[[bool], bool]:
        def ready(due: bool) -> bool:
            if not step.ready(due):
                return False
            moved, rest = _gradients(job)
            if due:
                self._overflow = unscale_(moved, state.scale)
            others = rest if due else [*moved, *rest, *whole_waiting(job.model)]
            multiply_(others, state.scale.reciprocal())
            return True

        return ready

    def _guarded(self, step: Step, job: Job, state: LossScale) -> Callable[[], bool]:
        growth = self._growth()

        def update() -> bool:
            assert job.step is not None
            overflow = job.step.agree(self._overflow)
            self._skipped.add_(overflow.reshape(()))
            if self.config.use_dynamic_loss_scaling:
                advance_(state, overflow, growth)
            return job.step.unless(overflow, step.update)

        return update

    @classmethod
    @override
    def alternatives(cls, subject: Subject, ranks: int) -> Sequence[Mapping[str, Any]]:
        return ({"dtype": "bfloat16"},)

    @override
    def running(self, run: Run, subject: Subject, mesh: Mapping[str, int]) -> Run:
        if subject.sample is None:
            return run
        places = self._places(subject.traced_model).values()
        held = [place for found in places for place in found]
        return replace(
            run,
            contexts=(*run.contexts, *self._contexts(subject.traced_on, held)),
            changes=(*run.changes, self._between_formats),
            key=(*run.key, self.config),
        )

    @override
    def exchanges(self, known: tuple[Exchange, ...], share: Share) -> tuple[Exchange, ...]:
        if self.config.pure:
            known = tuple(exchange.in_halves("a pure mode of amp_configs") for exchange in known)
        axes = [axis for axis in AXES if share.mesh[axis] > 1]
        if self.config.low != torch.float16 or not axes:
            return known
        flag = Exchange(
            collective="all-reduce",
            what="one flag, whether a gradient overflowed,",
            when="before each update",
            sent_bytes=sum(ring_bytes(FLAG_BYTES, share.mesh[axis]) for axis in axes),
            moved_bytes=FLAG_BYTES * len(axes),
            axis=" x ".join(axes),
        )
        return (*known, flag)

    @override
    def remarks(self) -> tuple[str, ...]:
        low = str(self.config.low).removeprefix("torch.")
        scaled = f"; the loss scale starts at {self.config.init_loss_scaling:g}"
        half = self.config.low == torch.float16
        which = "The whole forward" if self.config.pure else "Matrix products and convolutions"
        return (f"{which} in {low}{scaled if half else ''} (amp = True).",)

    @override
    def measures(self) -> Mapping[str, float | Tensor]:
        if self._state is None:
            return {}
        return {"loss_scale": self._state.scale, "skipped_updates": self._skipped}

    @override
    def leaves_out_overflow(self) -> bool:
        # At a scale of 1, which no overflow lowers any more, the scale is not the reason for it.
        dynamic = self.config.use_dynamic_loss_scaling
        return self._state is not None and (not dynamic or float(self._state.scale) > 1)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The loss scale and its counters, when they change."""
        if self._state is None or not self.config.use_dynamic_loss_scaling:
            return {}
        return {name: value.clone() for name, value in self._state._asdict().items()}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._state is None or not self.config.use_dynamic_loss_scaling:
            raise ValueError(
                "the checkpoint has a loss scale that changes, and amp_configs asks for none here; "
                "set dtype, use_pure_fp16 and use_dynamic_loss_scaling as they were when it was "
                "saved."
            )
        self._state.become(LossScale(**state))

    def _growth(self) -> Growth:
        return Growth(**{name: getattr(self.config, name) for name in _GROWTH})

    def _between_formats(self, forward: Forward) -> Forward:
        """Cast what enters a pure model, and what leaves any, for the criterion outside."""
        config = self.config

        def run(*args: Any, **kwargs: Any) -> Any:
            if config.pure:
                args, kwargs = cast((args, kwargs), config.low)
            outputs = forward(*args, **kwargs)
            return cast(outputs, torch.float32) if config.use_fp16_guard else outputs

        return run

    def _contexts(
        self, where: torch.device, held: list[tuple[nn.Module, str]]
    ) -> list[Callable[[], AbstractContextManager[Any]]]:
        low, pure, device = self.config.low, self.config.pure, where.type
        white, black = self.config.lists()
        casts = Casts(
            device=device,
            low=low,
            lowered=(white | PRODUCTS) - black if pure else white,
            kept=black,
            keeps=one_of(held) if held else None,
            parameters=pure,
        )
        contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        if not pure:
            contexts.append(lambda: torch.autocast(device, dtype=low))
        if pure or white or black or held:
            contexts.append(lambda: OperatorCasts(casts))
        return contexts

    def _held(self, model: nn.Module, job: Job) -> list[tuple[nn.Module, str]]:
        """Owner and attribute of each parameter that ``custom_black_varnames`` names."""
        held = self._places(model)
        for pattern, places in held.items():
            if not any(job.of_all_stages(bool(places))):
                reason = "is no parameter of the model and no submodule that has some"
                message = f"{self.config.spelled('custom_black_varnames')} has {pattern!r}, which "
                raise PlanError(option.unknown(message + reason, pattern, [*job.owners]))
        return [place for places in held.values() for place in places]

    def _places(self, model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
        patterns = self.config.custom_black_varnames
        return {pattern: parameters_named(model, pattern) for pattern in patterns}

    def _check_guard(self) -> None:
        if not self.config.use_fp16_guard and not self.config.pure:
            raise PlanError(
                "amp_configs['use_fp16_guard'] = False speaks of the pure modes, and none is on; "
                "set use_pure_fp16 or use_pure_bf16, or leave use_fp16_guard True."
            )

    def _warn(self, model: nn.Module, job: Job) -> None:
        half = self.config.low == torch.float16
        _, spared = self.config.lists()
        found = [module for module in model.modules() if isinstance(module, ConvBase)]
        weights: list[Tensor | None] = [one.weight for one in found]  # None: of another stage
        convolves = any(w is not None and f"conv{w.dim() - 2}d" not in spared for w in weights)
        if half and convolves and job.device.type == "cpu":
            logger.warning(
                "amp: the backward pass of float16 convolutions takes hundreds of times as long "
                "as that of float32 on a CPU; set amp_configs = {'dtype': 'bfloat16'} there."
            )


def _check_weights(model: nn.Module, job: Job) -> None:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    here = sorted({str(parameter.dtype) for parameter in trained.values()})
    formats = {name for stage in job.of_all_stages(here) for name in stage}
    if str(torch.float64) in formats and str(torch.float32) not in formats:
        raise PlanError(
            "strategy.amp = True computes in 16 bits where the model computes in float32, and all "
            "parameters of this model are float64, so it would have no effect; pass the model in "
            "float32, or set strategy.amp = False."
        )
    for name, parameter in trained.items():
        if parameter.dtype in {torch.float16, torch.bfloat16}:
            raise PlanError(
                f"the parameter {name!r} is {parameter.dtype}, and amp updates float32 weights, so "
                "that small changes are not lost; pass the model in float32. For 16-bit copies of "
                "them in the forward set use_pure_fp16 or use_pure_bf16 in amp_configs."
            )


def _gradients(job: Job) -> tuple[list[Tensor], list[Tensor]]:
    """Those that move parameters, and those of parameters that the optimizer was not given."""
    assert job.optimizer is not None
    moved = [p for group in job.optimizer.param_groups for p in group["params"]]
    known = set(map(id, moved))
    rest = [p for p in job.model.parameters() if id(p) not in known]
    found = ([p.grad for p in parameters] for parameters in (moved, rest))
    first, second = ([g for g in gradients if g is not None] for gradients in found)
    return first, second
