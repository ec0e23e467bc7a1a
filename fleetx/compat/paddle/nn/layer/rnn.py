"""``paddle.nn.layer.rnn``: recurrent layers.

Whole layers without lengths are torch's kernels, whose gates have Paddle's order; cells, and layers
over sequences of different lengths, are written out step by step.
"""

# Positions are those of Paddle.
# ruff: noqa: PLR0917

import math
from typing import Any

import torch
from typing_extensions import override

from fleetx.compat import modes
from fleetx.compat.fills import Even
from fleetx.compat.paddle.nn.functional.common import dropout as drop
from fleetx.compat.paddle.nn.layer.container import LayerList
from fleetx.compat.paddle.nn.layer.layers import Layer
from fleetx.compat.recorded import fake, operator


class RNNCellBase(Layer):
    """One step of a recurrent layer."""

    gates = 1
    two = False
    """Whether its state has two tensors."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__()
        self.input_size, self.hidden_size = input_size, hidden_size
        rows, bound = self.gates * hidden_size, 1.0 / math.sqrt(hidden_size)
        start: dict[str, Any] = {"default_initializer": Even(-bound, bound)}
        self.weight_ih = self.create_parameter([rows, input_size], weight_ih_attr, **start)
        self.weight_hh = self.create_parameter([rows, hidden_size], weight_hh_attr, **start)
        self.bias_ih = self.create_parameter([rows], bias_ih_attr, is_bias=True, **start)
        self.bias_hh = self.create_parameter([rows], bias_hh_attr, is_bias=True, **start)

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """States of one number, one for each sample of a batch."""
        sizes = (batch_ref.size(batch_dim_idx), self.hidden_size)
        one = torch.Tensor.new_full(batch_ref, sizes, init_value, dtype=self.weight_hh.dtype)
        return (one, one) if self.two else one

    def _sums(self, inputs: Any, hidden: Any) -> tuple[Any, Any]:
        linear = torch.nn.functional.linear
        return (
            linear(inputs, self.weight_ih, self.bias_ih),
            linear(hidden, self.weight_hh, self.bias_hh),
        )


class SimpleRNNCell(RNNCellBase):
    """A step of tanh or relu."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        activation: str = "tanh",
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            input_size, hidden_size, weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr
        )
        if activation not in {"tanh", "relu"}:
            raise ValueError(f"SimpleRNNCell(activation={activation!r}): 'tanh' or 'relu'.")
        self.activation = activation

    @override
    def forward(self, inputs: Any, states: Any = None) -> Any:
        states = self.get_initial_states(inputs) if states is None else states
        by_input, by_state = self._sums(inputs, states)
        made = getattr(torch, self.activation)(by_input + by_state)
        return made, made


class LSTMCell(RNNCellBase):
    """A step of an LSTM."""

    gates, two = 4, True

    @override
    def forward(self, inputs: Any, states: Any = None) -> Any:
        hidden, cell = self.get_initial_states(inputs) if states is None else states
        by_input, by_state = self._sums(inputs, hidden)
        enter, forget, new, out = torch.chunk(by_input + by_state, 4, -1)
        cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(out) * torch.tanh(cell)
        return hidden, (hidden, cell)


class GRUCell(RNNCellBase):
    """A step of a GRU."""

    gates = 3

    @override
    def forward(self, inputs: Any, states: Any = None) -> Any:
        hidden = self.get_initial_states(inputs) if states is None else states
        by_input, by_state = self._sums(inputs, hidden)
        reset_i, update_i, new_i = torch.chunk(by_input, 3, -1)
        reset_h, update_h, new_h = torch.chunk(by_state, 3, -1)
        update = torch.sigmoid(update_i + update_h)
        new = torch.tanh(new_i + torch.sigmoid(reset_i + reset_h) * new_h)
        hidden = (hidden - new) * update + new
        return hidden, hidden


def _where(keep: Any, new: Any, old: Any) -> Any:
    if isinstance(new, tuple):
        return tuple(_where(keep, n, o) for n, o in zip(new, old, strict=True))
    return torch.where(keep, new, old)


def _over_steps(
    cell: Any, inputs: Any, state: Any, lengths: Any, *, back: bool, axis: int, **options: Any
) -> Any:
    """What a cell makes of each step, from the first or from the last, and its last state."""
    steps = list(torch.unbind(inputs, axis))
    state = cell.get_initial_states(steps[0]) if state is None else state
    made: list[Any] = [None] * len(steps)
    order = range(len(steps))
    for at in reversed(order) if back else order:
        output, new = cell(steps[at], state, **options)
        if lengths is not None:
            keep = torch.unsqueeze(torch.gt(lengths, at), -1)
            new = _where(keep, new, state)
            output = torch.where(keep, output, torch.zeros_like(output))
        made[at], state = output, new
    return torch.stack(made, axis), state


class RNN(Layer):
    """A cell over all steps of a sequence."""

    def __init__(self, cell: Any, is_reverse: bool = False, time_major: bool = False) -> None:
        super().__init__()
        self.cell, self.is_reverse, self.time_major = cell, is_reverse, time_major

    @override
    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Any = None, **kwargs: Any
    ) -> Any:
        axis = 0 if self.time_major else 1
        given = (self.cell, inputs, initial_states, sequence_length)
        return _over_steps(*given, back=self.is_reverse, axis=axis, **kwargs)


class BiRNN(Layer):
    """Two cells over a sequence, from both ends."""

    def __init__(self, cell_fw: Any, cell_bw: Any, time_major: bool = False) -> None:
        super().__init__()
        self.cell_fw, self.cell_bw, self.time_major = cell_fw, cell_bw, time_major

    @override
    def forward(
        self, inputs: Any, initial_states: Any = None, sequence_length: Any = None, **kwargs: Any
    ) -> Any:
        first, axis = initial_states or (None, None), 0 if self.time_major else 1
        ends = [
            _over_steps(cell, inputs, state, sequence_length, back=back, axis=axis, **kwargs)
            for cell, state, back in [
                (self.cell_fw, first[0], False),
                (self.cell_bw, first[1], True),
            ]
        ]
        return torch.cat([made for made, _ in ends], -1), tuple(last for _, last in ends)


class RNNBase(LayerList):
    """Several recurrent layers above each other, in one or both directions."""

    cell: Any = SimpleRNNCell
    kernel: Any = staticmethod(torch.rnn_tanh)

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        direction: str = "forward",
        time_major: bool = False,
        dropout: float = 0.0,
        weight_ih_attr: Any = None,
        weight_hh_attr: Any = None,
        bias_ih_attr: Any = None,
        bias_hh_attr: Any = None,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if direction not in {"forward", "bidirectional", "bidirect"}:
            raise ValueError(
                f"direction={direction!r} is not known; 'forward' or 'bidirect' ('bidirectional')."
            )
        self.num_directions = 1 if direction == "forward" else 2
        self.num_layers, self.hidden_size = num_layers, hidden_size
        self.time_major, self.dropout = time_major, dropout
        attrs = (weight_ih_attr, weight_hh_attr, bias_ih_attr, bias_hh_attr)
        given = {
            **dict(
                zip(
                    ("weight_ih_attr", "weight_hh_attr", "bias_ih_attr", "bias_hh_attr"),
                    attrs,
                    strict=True,
                )
            ),
            **options,
        }
        self.state_components = 2 if self.cell.two else 1
        self._has_all = not any(attr is False for attr in attrs)
        for layer in range(num_layers):
            size = input_size if layer == 0 else hidden_size * self.num_directions
            cells = [self.cell(size, hidden_size, **given) for _ in range(self.num_directions)]
            single = self.num_directions == 1
            self.append(
                RNN(cells[0], time_major=time_major)
                if single
                else BiRNN(cells[0], cells[1], time_major)
            )

    def _first(self, initial_states: Any, batch: Any) -> list[list[Any]]:
        """The state of each layer and direction."""
        count = self.num_layers * self.num_directions
        if initial_states is None:
            flat: list[Any] = [None] * count
        elif self.state_components == 2:
            parts = [torch.unbind(part, 0) for part in initial_states]
            flat = list(zip(*parts, strict=True))
        else:
            given = initial_states
            flat = list(torch.unbind(given[0] if isinstance(given, (list, tuple)) else given, 0))
        width = self.num_directions
        return [flat[at : at + width] for at in range(0, count, width)]

    @override
    def forward(self, inputs: Any, initial_states: Any = None, sequence_length: Any = None) -> Any:
        # Evaluation clones of programs switch dropout off, which they cannot inside of a kernel.
        steady = not (self.dropout and modes.is_static())
        if sequence_length is None and self._has_all and steady:
            return self._by_kernel(inputs, initial_states)
        return self._by_steps(inputs, initial_states, sequence_length)

    def _weights(self) -> list[Any]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        cells = [
            cell
            for layer in self
            for cell in (
                [layer.cell_fw, layer.cell_bw] if self.num_directions == 2 else [layer.cell]
            )
        ]
        return [getattr(cell, name) for cell in cells for name in names]

    def _by_kernel(self, inputs: Any, initial_states: Any) -> Any:
        weights, both = self._weights(), self.num_directions == 2
        state = initial_states
        if state is None:
            sizes = (
                self.num_layers * self.num_directions,
                inputs.size(1 if self.time_major else 0),
                self.hidden_size,
            )
            state = torch.Tensor.new_zeros(inputs, sizes)
            state = (state, state) if self.state_components == 2 else state
        elif self.state_components == 1 and isinstance(state, (list, tuple)):
            state = state[0]
        options = (True, self.num_layers, self.dropout, self.training, both, not self.time_major)
        given = (inputs, state, weights, *options)
        found = self._in_program(given) if modes.is_static() else self.kernel(*given)
        return (found[0], tuple(found[1:])) if self.state_components == 2 else tuple(found)

    def _in_program(self, given: tuple[Any, ...]) -> Any:
        """The kernel as one operator: torch would settle the length of sequences in it."""
        inputs, state = given[0], given[1]
        width = self.hidden_size * self.num_directions
        outputs = fake([inputs.size(0), inputs.size(1), width], inputs.dtype)
        one = state[0] if isinstance(state, tuple) else state
        last = fake(list(one.size()), one.dtype)
        like = (outputs, *[last] * self.state_components)
        return operator(self.kernel, *given, like=like)

    def _by_steps(self, inputs: Any, initial_states: Any, sequence_length: Any) -> Any:
        x, last = inputs, []
        for at, (layer, state) in enumerate(
            zip(self, self._first(initial_states, inputs), strict=True)
        ):
            if at and self.dropout:
                x = drop(x, self.dropout, training=self.training)
            if self.num_directions == 1:
                x, new = layer.forward(x, state[0], sequence_length)
                last.append(new)
            else:
                first = None if state[0] is None else tuple(state)
                x, both = layer.forward(x, first, sequence_length)
                last.extend(both)
        if self.state_components == 2:
            return x, tuple(torch.stack(part, 0) for part in zip(*last, strict=True))
        return x, torch.stack(last, 0)


class SimpleRNN(RNNBase):
    """Recurrent layers of tanh or relu."""

    def __init__(self, *args: Any, activation: str = "tanh", **kwargs: Any) -> None:
        super().__init__(*args, activation=activation, **kwargs)
        vars(self)["kernel"] = torch.rnn_relu if activation == "relu" else torch.rnn_tanh


class LSTM(RNNBase):
    """LSTM layers."""

    cell = LSTMCell
    kernel = staticmethod(torch.lstm)


class GRU(RNNBase):
    """GRU layers."""

    cell = GRUCell
    kernel = staticmethod(torch.gru)
