"""The asynchronous ways: pushes as they come, half-asynchronous, and local copies (geo)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from typing_extensions import override

from fleetx.plan import option
from fleetx.plan.error import PlanError
from fleetx.plan.option import Above, AtLeast
from fleetx.plan.strategy import Plan
from fleetx.ps.tables.sparse_spec import Pace
from fleetx.ps.worker.carrier import Carrier
from fleetx.ps.worker.carrier_async import AsyncCarrier, HalfAsyncCarrier
from fleetx.ps.worker.carrier_geo import GeoCarrier
from fleetx.ps.worker.carrier_options import CarrierOptions
from fleetx.strategies.parameter_server.strategy import Count, ParameterServer, SplitMethod


class ASync(ParameterServer, name="a_sync"):
    """Workers do not wait for each other."""

    internal = False

    @dataclass(frozen=True, kw_only=True)
    class Config(option.Config):
        """How far workers may drift apart, and what travels when."""

        k_steps: Annotated[int, AtLeast(-1)] = -1
        """Above 0: train copies and exchange differences after so many updates (geo)."""
        half_async: bool = False
        """Wait for one's own push before the next batch."""
        max_staleness: Annotated[int, AtLeast(-1)] = -1
        """Updates by which a worker may be ahead of the slowest one; -1 for any number."""
        max_unsent: Count = 1
        """A worker's own pushes that may be under way when it begins a batch."""
        max_merge_var_num: Count = 1
        """Batches whose gradients are averaged into one push."""
        send_queue_size: Count = 16
        """Pushes that may wait to be sent."""
        independent_recv_thread: bool = False
        min_send_grad_num_before_recv: Count = 1
        """Pushes after which dense parameters are fetched."""
        thread_pool_size: Count = 1
        send_wait_times: Count = 1
        runtime_split_send_recv: bool = False
        launch_barrier: bool = True
        heter_worker_device_guard: str = "cpu"
        lr_decay_steps: Count = 10
        """Updates of a table, by any worker, after which its learning rate falls."""
        lr_decay_rate: Annotated[float, Above(0)] = 1.0
        """The factor by which it falls."""
        use_ps_gpu: Annotated[int, AtLeast(0)] = 0
        split_method: SplitMethod = "BySize"
        """Servers carry alike, or blocks go to them in turn, or by the name of the parameter."""
        slice_var_up: bool = True
        """Cut large parameters into blocks for several servers."""
        min_block_size: Count = 1024
        """The least numbers in a block."""

    config: Config

    @override
    def examine(self, plan: Plan) -> None:
        super().examine(plan)
        if self.config.half_async and self.config.k_steps > 0:
            raise PlanError(
                "a_sync_configs asks for half_async and for k_steps, and a job has one way to "
                "exchange. Set k_steps = 0 or half_async = False."
            )
        _refuse_unused(self.config, self.chosen())

    @override
    def rests(self) -> Mapping[str, str]:
        """What bounds the pushes that wait, where something else bounds them more tightly."""
        config, found = self.config, dict[str, str]()
        limit = max(config.max_unsent, config.max_merge_var_num)
        most = limit if config.max_staleness < 0 else min(limit, config.max_staleness)
        for name, idle in (
            ("max_unsent", not config.max_merge_var_num < config.max_unsent <= most),
            ("send_queue_size", config.send_queue_size > most),
        ):
            if idle and getattr(config, name) != option.default(ASync.Config, name):
                why = f"a worker waits as soon as more than {most} of its own pushes are under way"
                found[config.spelled(name)] = (
                    f"{why} (max_unsent, max_merge_var_num, max_staleness)"
                )
        return found

    @override
    def chosen(self) -> type[Carrier]:
        if self.config.k_steps > 0:
            return GeoCarrier
        return HalfAsyncCarrier if self.config.half_async else AsyncCarrier

    @override
    def carrier_options(self) -> CarrierOptions:
        config = self.config
        pace = Pace(decay=config.lr_decay_rate, every=config.lr_decay_steps)
        return CarrierOptions(
            split=self._split(),
            pace=pace,
            merge=config.max_merge_var_num,
            queue=config.send_queue_size,
            refresh=config.min_send_grad_num_before_recv,
            every=max(1, config.k_steps),
            bound=config.max_staleness,
            unsent=config.max_unsent,
        )

    @override
    def remarks(self) -> tuple[str, ...]:
        words = {
            AsyncCarrier: "Pushes are applied as they come, and sent beside the computation.",
            HalfAsyncCarrier: "Pushes are applied as they come; a worker waits for its own.",
            GeoCarrier: f"Workers train copies and exchange differences every "
            f"{self.config.k_steps} updates (a_sync_configs['k_steps']).",
        }
        bound = self.config.max_staleness
        limit = f"No worker is more than {bound} updates ahead (max_staleness)."
        return (words[self.chosen()], *([limit] if bound >= 0 else []))


_NOWHERE = (
    "independent_recv_thread",
    "thread_pool_size",
    "send_wait_times",
    "runtime_split_send_recv",
    "launch_barrier",
    "heter_worker_device_guard",
    "use_ps_gpu",
)
"""Options of Paddle's communicator for which there is nothing to choose here."""
_USED = {
    "max_merge_var_num": (AsyncCarrier, HalfAsyncCarrier),
    "send_queue_size": (AsyncCarrier,),
    "max_unsent": (AsyncCarrier,),
    "min_send_grad_num_before_recv": (AsyncCarrier,),
    "lr_decay_rate": (AsyncCarrier, HalfAsyncCarrier),
}


def _refuse_unused(config: ASync.Config, chosen: type[Carrier]) -> None:
    """A flag that is on is in force, or the run stops."""
    steps = option.default(ASync.Config, "lr_decay_steps")
    if config.lr_decay_steps != steps and config.lr_decay_rate == 1:
        raise PlanError(
            f"a_sync_configs['lr_decay_steps'] = {config.lr_decay_steps} says when the learning "
            "rate falls, and a_sync_configs['lr_decay_rate'] = 1 lets it stay. Set lr_decay_rate, "
            f"such as 0.9, or leave lr_decay_steps at {steps}."
        )
    for name in (*_NOWHERE, *_USED):
        normal = option.default(type(config), name)
        if getattr(config, name) != normal and chosen not in _USED.get(name, ()):
            raise PlanError(
                f"{config.spelled(name)} = {getattr(config, name)!r} has no effect in this way of "
                f"exchanging. Leave it at {normal!r}."
            )
