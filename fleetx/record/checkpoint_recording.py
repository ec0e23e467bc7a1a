"""``torch.utils.checkpoint`` inside of what is recorded: its operators are replayed in backward."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fleetx.record.error import ProgramError
from fleetx.record.recording_state import state
from fleetx.record.source_lines import user_line
from fleetx.record.variable import Variable, variables
from fleetx.torch_internals import buffers_of, checkpoint_generator

_OPTIONS = ("preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")
"""Of a checkpoint without reentrance, in the order in which torch hands them on."""


def records_checkpoint(values: Any) -> bool:
    """Whether a checkpoint is the program's: variables may hide in the closure of its function."""
    return state.on and (state.depth > 0 or bool(variables(values)))


def checkpoint_or_record(function: Any, *given: Any, **kwargs: Any) -> Iterator[None]:
    """Around the function of a checkpoint without reentrance, which torch calls by itself."""
    options, args = given[: len(_OPTIONS)], given[len(_OPTIONS) :]
    if not records_checkpoint((args, kwargs)):
        yield from checkpoint_generator(function, *given, **kwargs)
        return
    known = dict(zip(_OPTIONS, options, strict=True))
    with replayed([*args, *kwargs.values()], use_reentrant=False, **known):
        yield


@contextmanager
def replayed(given: Sequence[Any], **options: Any) -> Iterator[None]:
    """Note for the operators recorded inside that a checkpoint with these options replays them."""
    found = variables(given)
    program = found[0].program if found else state.sources[0]()
    own = [value.node for value in given if isinstance(value, Variable)]
    with program.replayed(own, options) as replay:
        yield
    for module, before in state.buffers.items():
        for name, value in buffers_of(module).items():
            made = isinstance(value, Variable) and value is not before.get(name)
            if made and replay in vars(value)["node"].meta["replays"]:
                raise ProgramError(
                    f"{user_line()}: checkpoint() runs its function again in backward, and the "
                    f"buffer {name!r} of a {type(module).__name__} is assigned in it, which a "
                    f"program cannot do again; write self.{name}.copy_(...), or assign it outside."
                )
