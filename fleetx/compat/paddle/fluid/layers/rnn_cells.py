"""Cells of ``paddle.fluid.layers``, and the layer that repeats one."""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat import unique_names
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import settle
from fleetx.compat.recurrences import Recurrence
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of
from fleetx.torch_internals import tree_flatten, tree_unflatten


class RNNCell:
    """One step of a recurrent layer: ``call(inputs, states)`` gives outputs and new states."""

    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """One step."""
        raise NotImplementedError("A cell needs a method `call`, which makes one step; define it.")

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """One step."""
        return self.call(inputs, states, **kwargs)

    @property
    def state_shape(self) -> Any:
        """Sizes of the states without the batch."""
        raise NotImplementedError(
            "A cell without state_shape cannot make states by itself; define it."
        )

    @property
    def state_dtype(self) -> Any:
        """The format of the states."""
        return "float32"

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States that are a number everywhere."""
        ref = tree_flatten(batch_ref)[0][0]
        count = ref.shape[batch_dim_idx]
        kind = dtype_of(self.state_dtype if dtype is None else dtype)

        def made(sizes: Any) -> Any:
            if isinstance(sizes, (list, tuple)) and sizes and isinstance(sizes[0], (list, tuple)):
                return [made(each) for each in sizes]
            inner = [int(s) for s in sizes if int(s) != -1]
            return torch.Tensor.new_full(ref, [count, *inner], init_value, dtype=kind)

        return made(self.state_shape if shape is None else shape)


class _Built(RNNCell, ABC):
    """A cell whose parameters are made when its first input is seen."""

    _parameters: Any = None

    def _describe(self, attrs: tuple[Any, Any], acts: tuple[Any, Any], dtype: Any) -> None:
        """Keep what both kinds are told: of weights and biases, of gates and values."""
        self._attrs, self._dtype = attrs, dtype
        self._gate, self._act = acts[0] or torch.sigmoid, acts[1] or torch.tanh

    def _made(self, x: Any) -> Any:
        program = x.program if isinstance(x, Variable) else None
        if self._parameters is None or self._parameters[0] is not program:
            self._parameters = program, self._build(size_of(x, -1))
        return self._parameters[1]

    @abstractmethod
    def _build(self, width: int) -> Any:
        """Make the parameters for inputs of this width."""


class GRUCell(_Built):
    """One step of a GRU."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
        name: str = "GRUCell",
    ) -> None:
        self._describe((param_attr, bias_attr), (gate_activation, activation), dtype)
        self.hidden_size = hidden_size
        self._name = unique_names.generate(name)

    @override
    def _build(self, width: int) -> Any:
        size = self.hidden_size
        kind, (weight, bias) = self._dtype, self._attrs
        found = [
            create(self._name, _part(weight, part), [width + size, wide], kind, default=WEIGHT)
            for part, wide in (("gate", 2 * size), ("candidate", size))
        ]
        for part, wide in (("gate", 2 * size), ("candidate", size)):
            attr = _part(bias, part)
            found.append(create(self._name, attr, [wide], kind, default=BIAS, is_bias=True))
        return found

    @override
    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new state, twice."""
        gates, candidates, gate_bias, bias = self._made(inputs)
        opened = self._gate(_sum(torch.matmul(torch.cat([inputs, states], 1), gates), gate_bias))
        reset, update = torch.split(opened, self.hidden_size, 1)
        kept = torch.cat([inputs, reset * states], 1)
        new = self._act(_sum(torch.matmul(kept, candidates), bias))
        found = update * states + (1 - update) * new
        return found, found

    @property
    @override
    def state_shape(self) -> Any:
        """Sizes of the state."""
        return [self.hidden_size]


class LSTMCell(_Built):
    """One step of an LSTM."""

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        hidden_size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
        name: str = "LSTMCell",
    ) -> None:
        self._describe((param_attr, bias_attr), (gate_activation, activation), dtype)
        self.hidden_size = hidden_size
        self._forget = forget_bias
        self._name = unique_names.generate(name)

    @override
    def _build(self, width: int) -> Any:
        size = self.hidden_size
        weight, bias = self._attrs
        return (
            create(self._name, weight, [width + size, 4 * size], self._dtype, default=WEIGHT),
            create(self._name, bias, [4 * size], self._dtype, default=BIAS, is_bias=True),
        )

    @override
    def call(self, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """The new hidden state, and both states."""
        weight, bias = self._made(inputs)
        hidden, cell = states
        gates = _sum(torch.matmul(torch.cat([inputs, hidden], 1), weight), bias)
        i, j, f, o = torch.split(gates, self.hidden_size, 1)
        kept = cell * self._gate(f + self._forget)
        new = kept + self._gate(i) * self._act(j)
        out = self._act(new) * self._gate(o)
        return out, [out, new]

    @property
    @override
    def state_shape(self) -> Any:
        """Sizes of the states."""
        return [[self.hidden_size], [self.hidden_size]]


def _sum(x: Any, bias: Any) -> Any:
    return x if bias is None else x + bias


def _part(attr: Any, part: str) -> Any:
    """How one of two parameters is described that share a description: each has its name."""
    described = ParamAttr.of(attr)
    if described is None or described.name is None:
        return attr
    return replace(described, name=f"{described.name}_{part}")


def rnn(  # noqa: PLR0917 (the order of Paddle)
    cell: Any,
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Any = None,
    time_major: bool = False,
    is_reverse: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """All steps of a cell: its outputs, and its states behind the last step."""
    leaves, form = tree_flatten(inputs)
    settle(*leaves)
    along = [x if time_major else torch.transpose(x, 0, 1) for x in leaves]
    if initial_states is None:
        initial_states = cell.get_initial_states(
            batch_ref=inputs, batch_dim_idx=1 if time_major else 0
        )
    along = [torch.flip(x, [0]) for x in along] if is_reverse else along
    first, states_form = tree_flatten(initial_states)
    steps = Recurrence()
    with steps.block():
        with steps.outside():
            mask = None if sequence_length is None else _mask(along[0], sequence_length, is_reverse)
        seen = [steps.step_input(x) for x in along]
        going = None if mask is None else steps.step_input(mask)
        held = [steps.memory(state) for state in first]
        states = tree_unflatten(held, states_form)
        output, after = cell(tree_unflatten(seen, form), states, **kwargs)
        outputs, outputs_form = tree_flatten(output)
        for before, new in zip(held, tree_flatten(after)[0], strict=True):
            steps.update(before, new if going is None else _chosen(going, new, before))
        steps.outputs.extend(outputs)
    found = [torch.flip(x, [0]) for x in steps.found] if is_reverse else steps.found
    found = found if time_major else [torch.transpose(x, 0, 1) for x in found]
    return tree_unflatten(found, outputs_form), tree_unflatten(steps.final, states_form)


def _mask(along: Any, lengths: Any, is_reverse: bool) -> Any:
    """Whether a sequence has a step, [steps, batch]."""
    ones = torch.Tensor.to(
        torch.ones_like(torch.reshape(along, (along.shape[0], along.shape[1], -1))[..., 0]),
        torch.int64,
    )
    steps = torch.cumsum(ones, 0) - 1
    found = torch.lt(steps, torch.reshape(lengths, (1, -1)))
    return torch.flip(found, [0]) if is_reverse else found


def _chosen(going: Any, new: Any, before: Any) -> Any:
    shape = (-1, *[1] * (new.dim() - 1))
    return torch.where(torch.reshape(going, shape), new, before)
