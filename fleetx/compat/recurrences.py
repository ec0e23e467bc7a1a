"""Blocks that run once for each step of sequences, with memories between the steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from fleetx.compat.recorded import fake, operator
from fleetx.compat.steps import Steps, behind, device_of, last_of, taken_out
from fleetx.record.error import ProgramError
from fleetx.record.variable import Variable
from fleetx.static.record.current import default_main_program


@dataclass
class Memory:
    """What a step leaves for the next one."""

    first: Variable
    """The value before the first step."""
    held: Variable
    """What the block reads."""
    next: Variable | None = None
    """What the block gives."""


class Recurrence:
    """A block that is being written, and then is one operator.

    Inputs are [steps, batch, …]; the block sees [batch, …]. Where ``lengths`` are given, memories
    of a sequence stay what they are behind its end.
    """

    def __init__(self) -> None:
        self._inputs: list[tuple[Variable, Variable]] = []
        self.memories: list[Memory] = []
        self.outputs: list[Variable] = []
        self._outside: set[fx.Node] = set()
        self._last: fx.Node | None = None
        self._lengths: Any = None
        self.found: list[Any] = []
        """Outputs of all steps, [steps, batch, …], when the block has ended."""
        self.final: list[Any] = []
        """Memories behind the last step."""

    @contextmanager
    def block(self) -> Iterator[None]:
        """Write a step inside."""
        self._last = last_of(default_main_program().graph)
        yield
        self._finish()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """What is written inside is computed once, before the steps."""
        graph = default_main_program().graph
        last = last_of(graph)
        yield
        self._outside.update(behind(graph, last))

    def step_input(self, x: Any, lengths: Any = None) -> Any:
        """One step of an input."""
        with self.outside():
            seen: Any = torch.clone(torch.select(x, 0, 0))
        self._inputs.append((x, seen))
        self._lengths = self._lengths if lengths is None else lengths
        return seen

    def input_of(self, seen: Any) -> Any:
        """The whole input that a step is of; the argument itself if it is none."""
        return next((x for x, part in self._inputs if part is seen), seen)

    @property
    def batch(self) -> Any:
        """How many sequences there are."""
        if not self._inputs:
            raise ProgramError("a memory is made before step_input(); call that first.")
        return self._inputs[0][0].shape[1]

    def memory(self, first: Any) -> Any:
        """A memory with its value before the first step."""
        with self.outside():
            held: Any = torch.clone(first)
        self.memories.append(Memory(first, held))
        return held

    def update(self, held: Any, value: Any) -> None:
        """Say what a memory is in the next step."""
        found = next((memory for memory in self.memories if memory.held is held), None)
        if found is None:
            raise ProgramError("update_memory() takes a variable that memory() gave, first.")
        found.next = value

    def _finish(self) -> None:
        program = default_main_program()
        for memory in self.memories:
            if memory.next is None:
                raise ProgramError("a memory of the block is never updated; call update_memory().")
        nodes = [n for n in behind(program.graph, self._last) if n not in self._outside]
        scan = _Scan(
            Steps(nodes),
            [seen.node for _, seen in self._inputs],
            [memory.held.node for memory in self.memories],
            [memory.next.node for memory in self.memories if memory.next is not None],
            [output.node for output in self.outputs],
        )
        first = [memory.first for memory in self.memories]
        rest = [Variable(n.meta["val"], n, program) for n in scan.given]
        given = [*(x for x, _ in self._inputs), *first, *rest]
        count = self._inputs[0][0].shape[0]
        likes = [
            *(fake([count, *o.fake.shape], o.fake.dtype, like=given) for o in self.outputs),
            *(fake(m.first.fake.shape, m.first.fake.dtype, like=given) for m in self.memories),
        ]

        def steps(lengths: Any, *values: Any, training: bool = True) -> list[Any]:
            return scan(lengths, values, training)

        made = operator(steps, self._lengths, *given, like=likes, by_numbers=True, training=True)
        taken_out(program, nodes)
        self.found, self.final = made[: len(self.outputs)], made[len(self.outputs) :]


class _Scan:
    """Runs the steps."""

    def __init__(
        self,
        steps: Steps,
        inputs: list[fx.Node],
        held: list[fx.Node],
        after: list[fx.Node],
        outputs: list[fx.Node],
    ) -> None:
        self._steps, self._inputs, self._held = steps, inputs, held
        self._after, self._outputs = after, outputs
        inner = {*inputs, *held}
        computed = [node for node in [*after, *outputs] if node not in inner]
        own = steps.computed
        outer = [*steps.used, *(node for node in computed if node not in own)]
        self.given = [node for node in dict.fromkeys(outer) if node not in inner]
        """What every step is given."""

    def __call__(self, lengths: Tensor | None, values: Any, training: bool) -> list[Tensor]:
        count = len(self._inputs)
        inputs, state = values[:count], list(values[count : count + len(self._held)])
        rest = dict(zip(self.given, values[count + len(self._held) :], strict=True))
        found: list[list[Tensor]] = [[] for _ in self._outputs]
        device = device_of(values)
        for at in range(len(inputs[0])):
            known = {
                **rest,
                **{node: x[at] for node, x in zip(self._inputs, inputs, strict=True)},
                **dict(zip(self._held, state, strict=True)),
            }
            self._steps.run(known, training=training, device=device)
            for kept, node in zip(found, self._outputs, strict=True):
                kept.append(known[node])
            after = [known[node] for node in self._after]
            if lengths is not None:
                after = [_kept(a, s, lengths > at) for a, s in zip(after, state, strict=True)]
            state = after
        return [*(torch.stack(kept) for kept in found), *state]


def _kept(new: Tensor, old: Tensor, going: Tensor) -> Tensor:
    """The new value where a sequence goes on."""
    return torch.where(going.reshape(-1, *[1] * (new.dim() - 1)), new, old)


def filled(  # noqa: PLR0917
    like: Any, shape: Any, value: float, dtype: torch.dtype, batch: Any, at: int
) -> Any:
    """A first memory: a number everywhere, as many as the batch has."""
    sizes = [batch if dim == at else int(size) for dim, size in enumerate(shape)]
    return torch.Tensor.new_full(like, sizes, value, dtype=dtype)
