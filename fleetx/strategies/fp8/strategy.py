"""fp8: linear layers multiply in float8, on GPUs that do so twice as fast as in 16 bits."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

from torch import Tensor, nn
from typing_extensions import override

from fleetx.graph.float8_devices import without_float8
from fleetx.graph.layer_kinds import with_descendants
from fleetx.plan import option
from fleetx.plan.contract import Contract, Phase
from fleetx.plan.error import PlanError
from fleetx.plan.forward import Forward, replace_forward
from fleetx.plan.job import Job
from fleetx.plan.option import OneOf
from fleetx.plan.pace import Pace
from fleetx.plan.share import Share
from fleetx.plan.strategy import Strategy
from fleetx.plan.subject import Subject
from fleetx.strategies.fp8 import products
from fleetx.strategies.fp8.calls import Calls
from fleetx.strategies.fp8.casting import load_kernels
from fleetx.strategies.fp8.costs import cast_bytes, in_float8
from fleetx.strategies.fp8.layers import Chosen, Layer, chosen

logger = logging.getLogger(__name__)
Product = Callable[..., Tensor]


class Fp8(Strategy, name="fp8"):
    """Lets linear layers multiply in float8, forward and backward; weights stay what they are."""

    contract = Contract(phase=Phase.PRODUCT, touches=frozenset({"model"}), tolerance=0.3)

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """Which layers, and how numbers are brought into the range of float8."""

        scales: Annotated[str, OneOf(("tensor", "row"))] = "tensor"
        """One scale for each factor of a product, or one for each of its rows and columns."""
        layers: tuple[str, ...] = ()
        """Linear layers or submodules, or patterns of them; empty: all but first and last."""
        exclude: tuple[str, ...] = ()
        """Those of them that stay as they are."""

    config: Config

    @override
    def model(self, model: nn.Module, job: Job) -> nn.Module:
        if why := without_float8(job.device):
            raise PlanError(
                f"strategy.fp8 = True cannot be in force here: {why}, and products in float8 need "
                "an NVIDIA GPU of the Hopper generation (H100, H200) or a later one. Set "
                "strategy.fp8 = False; strategy.amp computes in 16 bits on every device."
            )
        if not self._by_row:
            load_kernels(job.device)
        found = self._chosen(model)
        logger.info("fp8: %s", found.in_words())
        elsewhere = with_descendants(job.elsewhere)
        product = self._product(spread=job.size("tp") > 1)
        here = [layer for layer in found.taken if layer.module not in elsewhere]
        calls = Calls(here, job)
        for layer in here:
            replace_forward(layer.module, _multiplying(layer, product, calls, self._by_row))
        if job.size("pp") == 1:  # else a batch runs the model in pieces
            replace_forward(model, calls.around)
        return model

    @override
    def share(self, share: Share) -> Share:
        if share.trace is None:
            return share
        return in_float8(share, self._of(share.subject).taken, by_row=self._by_row)

    @override
    def pace(self, pace: Pace, share: Share) -> Pace:
        if share.trace is None:
            return pace
        layers = self._of(share.subject).taken
        if share.subject.device.type == "cuda" and not self._by_row:
            moved = cast_bytes(share, layers, by_kernels=True)
            return replace(pace, cast_by_kernels=pace.cast_by_kernels + moved)
        moved = cast_bytes(share, layers, by_kernels=False)
        return replace(pace, casts=pace.casts + moved)

    @override
    def found(self, subject: Subject) -> tuple[str, ...]:
        return (self._of(subject).in_words(),)

    @override
    def remarks(self) -> tuple[str, ...]:
        each = "row" if self._by_row else "tensor"
        return (
            "Linear layers multiply e4m3 numbers, and e5m2 gradients in backward, with a scale for "
            f"each {each} (fp8_configs).",
        )

    @property
    def _by_row(self) -> bool:
        return self.config.scales == "row"

    def _chosen(self, model: nn.Module) -> Chosen:
        return chosen(model, self.config.layers, self.config.exclude)

    def _of(self, subject: Subject) -> Chosen:
        key = "fp8", self.config.layers, self.config.exclude
        return subject.once(key, lambda: self._chosen(subject.shape))

    @staticmethod
    def _product(*, spread: bool) -> Product:
        if not spread:
            return products.linear
        # Loaded here: distributed tensors take a second that jobs which cut nothing do not pay.
        from fleetx.strategies.fp8 import spread as parts

        return parts.linear


def _multiplying(
    layer: Layer, product: Product, calls: Calls, by_row: bool
) -> Callable[[Forward], Forward]:
    module: Any = layer.module

    def change(plain: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            calls.note(layer)
            (x,) = (*args, *kwargs.values())
            # As of now: whoever spreads or shards parameters exchanges them.
            weight = module.weight.t() if layer.by_columns else module.weight
            return product(x, weight, module.bias, by_row=by_row)

        return run

    return change
