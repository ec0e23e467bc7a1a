"""Every private name of torch that fleetx uses, in one place.

A release of torch may change any of them without notice. All were seen to work in 2.11 and 2.13,
which are the oldest and the newest release that fleetx is tested with; `tests/
test_torch_internals.py` says which one is gone or means something else. Methods that subclasses
override stay where the subclass is: `OVERRIDDEN` lists them.

The names lie in files by subject; everybody else imports them from here.
"""

from typing import TYPE_CHECKING, Any

from fleetx.torch_internals import fake_tensors
from fleetx.torch_internals.distributed import *
from fleetx.torch_internals.modules import *
from fleetx.torch_internals.operators import *
from fleetx.torch_internals.recording import *
from fleetx.torch_internals.tensors import *
from fleetx.torch_internals.trees import *

if TYPE_CHECKING:
    from fleetx.torch_internals.fake_tensors import *

OVERRIDDEN = {
    "torch.nn.Module._apply": "moves what a module keeps beside parameters and buffers",
    "torch.distributed.pipelining.PipelineStage._prepare_forward_infra": "asks for fewer gradients",
    "torch.fx.experimental.symbolic_shapes.ShapeEnv._set_replacement": "sees sizes become numbers",
}
"""Methods that subclasses of fleetx override or call through super() -> why."""


def __getattr__(name: str) -> Any:
    """What is heavy to load comes when it is first asked for."""
    return getattr(fake_tensors, name)
