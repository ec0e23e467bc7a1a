"""Recurrent layers of ``paddle.fluid.layers``, over records of different lengths and batches."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import unique_names
from fleetx.compat.lods import one_behind_the_other, side_by_side
from fleetx.compat.paddle.fluid.layers.common import ACTIVATIONS
from fleetx.compat.paddle.fluid.layers.linear import BIAS, WEIGHT, fc
from fleetx.compat.parameters import create
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of

Act = Callable[[Any], Any]


def _act(kind: str) -> Act:
    if kind == "identity":
        return lambda x: x
    if kind not in ACTIVATIONS:
        raise ValueError(f"activation {kind!r} is none of {', '.join(ACTIVATIONS)}, identity.")
    return ACTIVATIONS[kind]


def _whole(first: Any, padded: Any, width: int) -> Any:
    """The first state, zeros where none is given."""
    if first is not None:
        return first
    return torch.Tensor.new_zeros(padded, [padded.shape[1], width])


def _steps(func: Callable[..., Any], padded: Any, widths: list[int], *args: Any) -> Any:
    """A function over all steps as one operator; it gives [steps, records, width] each."""
    settle(padded)
    if not isinstance(padded, Variable):
        return func(padded, *args)
    sizes = list(padded.fake.shape)[:2]
    likes = tuple(fake([*sizes, w], padded.fake.dtype, like=[padded, *args]) for w in widths)
    return operator(func, padded, *args, like=likes, by_numbers=True)


def _turned(padded: Tensor, lengths: Tensor) -> Tensor:
    """Every record backwards; what fills it up stays behind it."""
    steps = torch.arange(len(padded), device=padded.device)[:, None]
    at = torch.where(steps < lengths, lengths - 1 - steps, steps)
    return padded[at, torch.arange(len(lengths), device=padded.device)]


def dynamic_lstm(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    size: int,
    h_0: Any = None,
    c_0: Any = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
) -> tuple[Any, Any]:
    """Hidden states and cells of an LSTM, whose input is already multiplied: [rows, 4 * width]."""
    width = size // 4
    return _lstm_over_records(
        "lstm",
        (input, width, width),
        (h_0, c_0),
        (param_attr, bias_attr, None, name, dtype),
        (gate_activation, cell_activation, candidate_activation, "identity"),
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
    )


def dynamic_lstmp(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    candidate_activation: str = "tanh",
    proj_activation: str = "tanh",
    dtype: Any = "float32",
    name: str | None = None,
    h_0: Any = None,
    c_0: Any = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[Any, Any]:
    """The same with hidden states that are projected to another width."""
    return _lstm_over_records(
        "lstmp",
        (input, size // 4, proj_size),
        (h_0, c_0),
        (param_attr, bias_attr, param_attr, name, dtype),
        (gate_activation, cell_activation, candidate_activation, proj_activation),
        use_peepholes=use_peepholes,
        is_reverse=is_reverse,
        clips=(cell_clip, proj_clip),
    )


def _lstm_over_records(
    kind: str,
    given: tuple[Any, int, int],
    first: tuple[Any, Any],
    attrs: tuple[Any, Any, Any, str | None, Any],
    acts: tuple[str, str, str, str],
    *,
    use_peepholes: bool,
    is_reverse: bool,
    clips: tuple[float | None, float | None] = (None, None),
) -> tuple[Any, Any]:
    x, width, shown = given
    param_attr, bias_attr, proj_attr, name, dtype = attrs
    layer = name or unique_names.generate(kind)
    weight = create(layer, param_attr, [shown, 4 * width], dtype, default=WEIGHT)
    projection = None
    if kind == "lstmp":
        projection = create(layer, proj_attr, [width, shown], dtype, default=WEIGHT)
    count = 7 if use_peepholes else 4
    bias = create(layer, bias_attr, [1, count * width], dtype, default=BIAS, is_bias=True)
    padded, lengths, begins = side_by_side(x, f"dynamic_{kind}")
    functions = [_act(act) for act in acts]

    def over(rows: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        return _lstm((rows, *rest), functions, clips, is_reverse)

    hidden, cells = _steps(
        over,
        padded,
        [shown, width],
        lengths,
        weight,
        bias if bias is not None else torch.Tensor.new_zeros(padded, [1, 4 * width]),
        _whole(first[0], padded, shown),
        _whole(first[1], padded, width),
        projection if projection is not None else torch.Tensor.new_zeros(padded, [0]),
    )
    return one_behind_the_other(hidden, x, begins), one_behind_the_other(cells, x, begins)


def _lstm(
    given: tuple[Tensor, ...],
    acts: list[Act],
    clips: tuple[float | None, float | None],
    is_reverse: bool,
) -> tuple[Tensor, Tensor]:
    """Every step, with Paddle's order of gates: candidate, input, forget, output."""
    rows, lengths, weight, bias, hidden, cell, projection = given
    gate, cells, candidate, shown = acts
    width = cell.shape[1]
    rows = _turned(rows, lengths) if is_reverse else rows
    flat = bias.reshape(-1)
    peeped = flat[4 * width :].split(width) if flat.numel() == 7 * width else None
    ready = rows + flat[: 4 * width]
    found: list[tuple[Tensor, Tensor]] = []
    for at in range(len(rows)):
        c, i, f, o = (ready[at] + hidden @ weight).split(width, 1)
        if peeped is not None:
            i, f = i + peeped[0] * cell, f + peeped[1] * cell
        new = candidate(c) * gate(i) + cell * gate(f)
        new = new if not clips[0] else new.clamp(-clips[0], clips[0])
        o = o if peeped is None else o + peeped[2] * new
        out = gate(o) * cells(new)
        if projection.numel():
            out = shown(out @ projection)
            out = out if not clips[1] else out.clamp(-clips[1], clips[1])
        going = (lengths > at)[:, None]
        hidden, cell = torch.where(going, out, hidden), torch.where(going, new, cell)
        found.append((hidden, cell))
    if not found:
        return rows.new_zeros([0, *hidden.shape]), rows.new_zeros([0, *cell.shape])
    both = torch.stack([h for h, _ in found]), torch.stack([c for _, c in found])
    return (_turned(both[0], lengths), _turned(both[1], lengths)) if is_reverse else both


def dynamic_gru(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: str = "sigmoid",
    candidate_activation: str = "tanh",
    h_0: Any = None,
    origin_mode: bool = False,
) -> Any:
    """Hidden states of a GRU, whose input is already multiplied: [rows, 3 * size]."""
    layer = unique_names.generate("gru")
    weight = create(layer, param_attr, [size, 3 * size], input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [1, 3 * size], input.dtype, default=BIAS, is_bias=True)
    padded, lengths, begins = side_by_side(input, "dynamic_gru")
    gate, candidate = _act(gate_activation), _act(candidate_activation)

    def over(rows: Tensor, lengths: Tensor, w: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor]:
        rows = (_turned(rows, lengths) if is_reverse else rows) + b
        found = []
        for at in range(len(rows)):
            new, _, _ = gru_step(rows[at], h, w, gate, candidate, origin_mode)
            h = torch.where((lengths > at)[:, None], new, h)
            found.append(h)
        states = torch.stack(found) if found else rows.new_zeros([0, *h.shape])
        return (_turned(states, lengths) if is_reverse else states,)

    bias = bias if bias is not None else torch.Tensor.new_zeros(padded, [1, 3 * size])
    (hidden,) = _steps(over, padded, [size], lengths, weight, bias, _whole(h_0, padded, size))
    return one_behind_the_other(hidden, input, begins)


def gru_step(  # noqa: PLR0917
    x: Any, hidden: Any, weight: Any, gate: Act, candidate: Act, origin_mode: bool
) -> tuple[Any, Any, Any]:
    """One step. The weight is two matrices, [D, 2D] and [D, D], one behind the other."""
    width = weight.shape[0]
    flat = torch.reshape(weight, (-1,))
    gates = torch.reshape(flat[: 2 * width * width], (width, 2 * width))
    states = torch.reshape(flat[2 * width * width :], (width, width))
    opened = gate(x[:, : 2 * width] + torch.matmul(hidden, gates))
    update, reset = opened[:, :width], opened[:, width:]
    kept = reset * hidden
    new = candidate(x[:, 2 * width :] + torch.matmul(kept, states))
    if origin_mode:
        found = update * hidden + (1 - update) * new
    else:
        found = (1 - update) * hidden + update * new
    return found, kept, torch.cat([opened, new], 1)


def gru_unit(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    hidden: Any,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: str = "tanh",
    gate_activation: str = "sigmoid",
    origin_mode: bool = False,
) -> tuple[Any, Any, Any]:
    """One step of a GRU: the new state, the state after the reset gate, and the gates."""
    settle(input, hidden)
    layer, width = unique_names.generate("gru_unit"), size // 3
    weight = create(layer, param_attr, [width, 3 * width], input.dtype, default=WEIGHT)
    bias = create(layer, bias_attr, [1, 3 * width], input.dtype, default=BIAS, is_bias=True)
    x = input if bias is None else input + bias
    return gru_step(x, hidden, weight, _act(gate_activation), _act(activation), origin_mode)


def lstm_unit(  # noqa: PLR0917 (the order of Paddle)
    x_t: Any,
    hidden_t_prev: Any,
    cell_t_prev: Any,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> tuple[Any, Any]:
    """One step of an LSTM: the new hidden state and the new cell."""
    settle(x_t, hidden_t_prev, cell_t_prev)
    width = size_of(cell_t_prev, 1)
    both = torch.cat([x_t, hidden_t_prev], 1)
    gates = fc(both, 4 * width, param_attr=param_attr, bias_attr=bias_attr)
    i, f, o, g = torch.split(gates, width, 1)
    cell = torch.sigmoid(f + forget_bias) * cell_t_prev + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(cell), cell


def lstm(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    init_h: Any,
    init_c: Any,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[Any, Any, Any]:
    """Layers of LSTM over [steps, batch, width], all their weights in one row of numbers."""
    settle(input, init_h, init_c)
    ways = 2 if is_bidirec else 1
    widths = [size_of(input, 2), *[hidden_size * ways] * (num_layers - 1)]
    shapes = [
        (4 * hidden_size, before)
        for width in widths
        for _ in range(ways)
        for before in (width, hidden_size)
    ]
    biases = [(4 * hidden_size,)] * len(shapes)
    total = sum(a * b for a, b in shapes) + sum(a for (a,) in biases)
    layer = name or unique_names.generate("cudnn_lstm")
    weight = create(layer, None, [total], input.dtype, default=default_initializer or WEIGHT)
    sizes = [a * b for a, b in shapes] + [a for (a,) in biases]
    parts = [
        torch.reshape(part, shape)
        for part, shape in zip(torch.split(weight, sizes), [*shapes, *biases], strict=True)
    ]
    ordered = []
    for at in range(0, len(shapes), 2):
        ordered += [*parts[at : at + 2], *parts[len(shapes) + at : len(shapes) + at + 2]]
    found = torch.lstm(
        input,
        [init_h, init_c],
        ordered,
        True,
        num_layers,
        dropout_prob,
        not is_test,
        is_bidirec,
        False,
    )
    return found[0], found[1], found[2]
