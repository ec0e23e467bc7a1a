"""Options of strategies whose file does not exist yet.

They are known, checked, saved and loaded like all others; ``compose`` refuses to switch them on.
A strategy's file takes its class away from here.
"""

from dataclasses import dataclass
from typing import Annotated

from fleetx.plan.option import AtLeast, Config

Count = Annotated[int, AtLeast(1)]


@dataclass(frozen=True, kw_only=True)
class ASync(Config):
    """Parameter servers that do not wait for slow workers."""

    k_steps: Annotated[int, AtLeast(-1)] = -1
    max_merge_var_num: Count = 1
    send_queue_size: Count = 16
    independent_recv_thread: bool = False
    min_send_grad_num_before_recv: Count = 1
    thread_pool_size: Count = 1
    send_wait_times: Count = 1
    runtime_split_send_recv: bool = False
    launch_barrier: bool = True
    heter_worker_device_guard: str = "cpu"
    lr_decay_steps: Count = 10
    use_ps_gpu: Annotated[int, AtLeast(0)] = 0


PENDING: dict[str, type[Config]] = {
    "a_sync": ASync,
}

for _name, _config in PENDING.items():
    _config.label = f"{_name}_configs"
