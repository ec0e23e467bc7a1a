"""Layers of ``paddle.fluid.layers`` that give a tag to each row of a record."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fleetx.compat import unique_names
from fleetx.compat.lods import offsets_of, one_behind_the_other, set_lod, side_by_side
from fleetx.compat.paddle.fluid.layers.linear import WEIGHT
from fleetx.compat.parameters import ParamAttr, create
from fleetx.compat.recorded import fake, operator, settle
from fleetx.record.variable import Variable
from fleetx.static.layers.parameters import size_of


def _called(func: Any, *args: Any, likes: Any) -> Any:
    """A function over whole batches as one operator; ``likes`` gives shapes and formats."""
    if not any(isinstance(value, Variable) for value in args):
        return func(*args)
    found = tuple(fake(shape, kind, like=list(args)) for shape, kind in likes)
    return operator(func, *args, like=found, by_numbers=True)


def _laid_out(x: Any, length: Any, call: str) -> tuple[Any, Any]:
    """[steps, records, …] and the lengths, of rows with records or of [records, steps, …]."""
    if length is None:
        padded, lengths, _ = side_by_side(x, call)
        return padded, lengths
    return torch.transpose(x, 0, 1), torch.reshape(length, (-1,))


def linear_chain_crf(input: Any, label: Any, param_attr: Any = None, length: Any = None) -> Any:
    """How unlikely the tags of each record are, [records, 1]; begin, end and moves are learnt."""
    settle(input, label)
    tags = size_of(input, -1)
    layer = unique_names.generate("linear_chain_crf")
    moves = create(layer, param_attr, [tags + 2, tags], input.dtype, default=WEIGHT)
    emissions, lengths = _laid_out(input, length, "linear_chain_crf")
    labels, _ = _laid_out(label, length, "linear_chain_crf")
    likes = [([emissions.shape[1], 1], input.dtype)]
    return _called(_unlikely, emissions, moves, labels, lengths, likes=likes)[0]


def _unlikely(e: Tensor, moves: Tensor, labels: Tensor, lengths: Tensor) -> tuple[Tensor]:
    begin, end, between = moves[0], moves[1], moves[2:]
    tags = labels.reshape(*e.shape[:2]).long()
    total, score = begin + e[0], begin[tags[0]] + _picked(e[0], tags[0])
    last = tags[0]
    for at in range(1, len(e)):
        going = lengths > at
        new = torch.logsumexp(total[:, :, None] + between, 1) + e[at]
        total = torch.where(going[:, None], new, total)
        step = between[last, tags[at]] + _picked(e[at], tags[at])
        score = torch.where(going, score + step, score)
        last = torch.where(going, tags[at], last)
    return ((torch.logsumexp(total + end, 1) - score - end[last])[:, None],)


def _picked(x: Tensor, at: Tensor) -> Tensor:
    return x.gather(1, at[:, None])[:, 0]


def crf_decoding(input: Any, param_attr: Any, label: Any = None, length: Any = None) -> Any:
    """The likeliest tag of each row; with a label, 1 where that is the label."""
    settle(input)
    tags = size_of(input, -1)
    described = ParamAttr.of(param_attr)
    layer = unique_names.generate("crf_decoding")
    moves = create(layer, described, [tags + 2, tags], input.dtype, default=WEIGHT)
    emissions, lengths = _laid_out(input, length, "crf_decoding")
    sizes = [emissions.shape[0], emissions.shape[1], 1]
    path = _called(_likeliest, emissions, moves, lengths, likes=[(sizes, torch.int64)])[0]
    if length is None:
        path = one_behind_the_other(path, input, offsets_of(input, "crf_decoding"))
    else:
        path = torch.transpose(path, 0, 1)[..., 0]
    if label is None:
        return path
    return torch.Tensor.to(torch.eq(path, torch.reshape(label, path.shape)), torch.int64)


@torch.no_grad()
def _likeliest(e: Tensor, moves: Tensor, lengths: Tensor) -> tuple[Tensor]:
    begin, end, between = moves[0], moves[1], moves[2:]
    best, came = begin + e[0], []
    for at in range(1, len(e)):
        found, where = (best[:, :, None] + between).max(1)
        going = (lengths > at)[:, None]
        best = torch.where(going, found + e[at], best)
        came.append(torch.where(going, where, torch.arange(len(between), device=e.device)))
    tag = (best + end).argmax(1)
    path = [tag]
    for where in reversed(came):
        tag = _picked(where, tag)
        path.append(tag)
    found = torch.stack(path[::-1])
    there = torch.arange(len(e), device=e.device)[:, None] < lengths
    return (torch.where(there, found, 0)[..., None],)


Chunk = tuple[int, int, int]
"""The first row, the last one, and the kind."""

_PLACES = {"plain": "S", "IOB": "BI", "IOE": "IE", "IOBES": "BIES"}
"""What the tags of one kind mean, in their order: begin, inside, end, single."""


def _chunks(tags: list[int], scheme: str, kinds: int) -> Iterator[Chunk]:
    """The spans that tags name."""
    places = _PLACES[scheme]
    start: int | None = None
    before, kind_before = "", -1
    for at, tag in enumerate([*tags, kinds * len(places)]):
        inside = tag < kinds * len(places)
        place, kind = (places[tag % len(places)], tag // len(places)) if inside else ("", -1)
        if start is not None and _ends(before, kind_before, place, kind):
            yield start, at - 1, kind_before
            start = None
        if inside and (start is None or _begins(place)):
            start = at
        before, kind_before = place, kind


def _ends(before: str, kind_before: int, place: str, kind: int) -> bool:
    return kind != kind_before or before in {"E", "S"} or place in {"B", "S", ""}


def _begins(place: str) -> bool:
    return place in {"B", "S"}


def chunk_eval(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    label: Any,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Any = None,
    seq_length: Any = None,
) -> tuple[Any, ...]:
    """Precision, recall and F1 of the spans that tags name, and how many there are, each [1]."""
    settle(input, label)
    if chunk_scheme not in _PLACES:
        raise ValueError(
            f"chunk_eval(chunk_scheme={chunk_scheme!r}) is none of {', '.join(_PLACES)}."
        )
    left_out = set(excluded_chunk_types or [])
    padded, lengths = _laid_out(input, seq_length, "chunk_eval")
    labels, _ = _laid_out(label, seq_length, "chunk_eval")

    def spans(tags: Tensor) -> set[Chunk]:
        found = _chunks(tags.reshape(-1).tolist(), chunk_scheme, num_chunk_types)
        return {chunk for chunk in found if chunk[2] not in left_out}

    def counted(guess: Tensor, truth: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        counts = [0, 0, 0]
        for at, length in enumerate(lengths.tolist()):
            mine, theirs = spans(guess[:length, at]), spans(truth[:length, at])
            for i, found in enumerate((mine, theirs, mine & theirs)):
                counts[i] += len(found)
        precision, recall = (counts[2] / c if c else 0.0 for c in counts[:2])
        f1 = 2 * precision * recall / (precision + recall) if counts[2] else 0.0
        rates = [torch.tensor([r], device=guess.device) for r in (precision, recall, f1)]
        return *rates, *(torch.tensor([c], device=guess.device) for c in counts)

    likes = [([1], torch.float32)] * 3 + [([1], torch.int64)] * 3
    return tuple(_called(counted, padded, labels, lengths, likes=likes))


def warpctc(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    label: Any,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Any = None,
    label_length: Any = None,
) -> Any:
    """The loss of each record whose labels come in their order, at unknown rows: [records, 1]."""
    settle(input, label)
    if input_length is None:
        scores, steps = _laid_out(input, None, "warpctc")
        labels, counts = _laid_out(label, None, "warpctc")
    else:
        scores, steps = input, torch.reshape(input_length, (-1,))
        labels, counts = torch.transpose(label, 0, 1), torch.reshape(label_length, (-1,))

    def loss(x: Tensor, y: Tensor, steps: Tensor, counts: Tensor) -> tuple[Tensor]:
        x = (
            x / steps[None, :, None] + (x - x / steps[None, :, None]).detach()
            if norm_by_times
            else x
        )
        targets = y.reshape(*y.shape[:2]).T.long()
        given = x.log_softmax(-1), targets, steps, counts
        return (torch.nn.functional.ctc_loss(*given, blank=blank, reduction="none")[:, None],)

    likes = [([scores.shape[1], 1], input.dtype)]
    return _called(loss, scores, labels, steps, counts, likes=likes)[0]


def ctc_greedy_decoder(
    input: Any, blank: int, input_length: Any = None, padding_value: int = 0, name: Any = None
) -> Any:
    """The likeliest class of each row, repeated ones once and blanks left out."""
    settle(input)
    best = torch.argmax(input, -1)
    if input_length is None:
        return _aligned(best[:, None], offsets_of(input, "ctc_greedy_decoder"), blank)
    rows = best.shape[0] if isinstance(best, Variable) else len(best)

    def kept(tags: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.full_like(tags, padding_value)
        counts = torch.zeros_like(lengths.reshape(-1, 1))
        for at, (row, length) in enumerate(zip(tags, lengths.reshape(-1).tolist(), strict=True)):
            merged = _merged(row[:length], blank)
            found[at, : len(merged)], counts[at, 0] = merged, len(merged)
        return found, counts

    likes = [(list(best.shape), torch.int64), ([rows, 1], torch.int64)]
    return _called(kept, best, input_length, likes=likes)


def _merged(tags: Tensor, blank: int) -> Tensor:
    once: Tensor = torch.unique_consecutive(tags)
    return once[once != blank]


def _aligned(tags: Any, begins: Any, blank: int) -> Any:
    def kept(rows: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
        ends = [*begins.tolist()[1:], len(rows)]
        pairs = zip(begins.tolist(), ends, strict=True)
        parts = [_merged(rows[a:b, 0], blank) for a, b in pairs]
        counts = torch.tensor([0, *(len(part) for part in parts[:-1])], device=rows.device)
        return torch.cat(parts)[:, None], counts.cumsum(0)

    likes = [([None, 1], torch.int64), ([begins.shape[0]], torch.int64)]
    found, starts = _called(kept, tags, begins, likes=likes)
    return set_lod(found, starts)


def edit_distance(  # noqa: PLR0917 (the order of Paddle)
    input: Any,
    label: Any,
    normalized: bool = True,
    ignored_tokens: Any = None,
    input_length: Any = None,
    label_length: Any = None,
) -> tuple[Any, Any]:
    """How many changes lead from each record to its label, [records, 1], and how many there are."""
    settle(input, label)
    guess, mine = _by_record(input, input_length)
    truth, theirs = _by_record(label, label_length)
    left_out = set(ignored_tokens or [])

    def rows(x: Tensor, lengths: Tensor) -> list[list[int]]:
        cut = [x[:n, at].reshape(-1).tolist() for at, n in enumerate(lengths.tolist())]
        return [[token for token in row if token not in left_out] for row in cut]

    def distances(a: Tensor, m: Tensor, b: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        pairs = list(zip(rows(a, m), rows(b, n), strict=True))
        found = [_changes(x, y) / (len(y) if normalized else 1) for x, y in pairs]
        return torch.tensor(found, device=a.device)[:, None], torch.tensor([len(pairs)])

    likes = [([guess.shape[1], 1], torch.float32), ([1], torch.int64)]
    return tuple(_called(distances, guess, mine, truth, theirs, likes=likes))


def _by_record(x: Any, length: Any) -> tuple[Any, Any]:
    return _laid_out(x, length, "edit_distance")


def _changes(a: list[int], b: list[int]) -> float:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return float(row[-1])
