"""Decoders of ``paddle.fluid.layers``: steps that go on until every sequence has ended."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from typing_extensions import override

from fleetx.compat.recorded import fake, operator, settle
from fleetx.compat.steps import Steps, behind, device_of, last_of, taken_out
from fleetx.record.variable import Variable
from fleetx.static.record.current import default_main_program
from fleetx.torch_internals import tree_flatten, tree_map, tree_unflatten

FAR = 1e9
"""Makes a score that is never chosen."""

LIMIT = 10_000
"""Steps after which decoding ends where a script gives no number."""


class Decoder:
    """What ``dynamic_decode`` runs."""

    def initialize(self, inits: Any) -> Any:
        """First inputs, states, and which sequences have ended."""
        raise NotImplementedError

    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """Outputs, next states, next inputs, and which sequences have ended."""
        raise NotImplementedError

    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """What is made of all outputs."""
        return outputs, final_states

    @property
    def tracks_own_finished(self) -> bool:
        """Whether a sequence that has ended stays so without help."""
        return False


class Found(NamedTuple):
    """What a step of a beam search gives."""

    scores: Any
    predicted_ids: Any
    parent_ids: Any


class Beams(NamedTuple):
    """What a beam search keeps between steps."""

    cell_states: Any
    log_probs: Any
    finished: Any
    lengths: Any


class BeamSearchDecoder(Decoder):
    """Keeps the likeliest beginnings of each sequence."""

    OutputWrapper = Found
    StateWrapper = Beams

    def __init__(  # noqa: PLR0917 (the order of Paddle)
        self,
        cell: Any,
        start_token: int,
        end_token: int,
        beam_size: int,
        embedding_fn: Any = None,
        output_fn: Any = None,
    ) -> None:
        self.cell, self.start_token, self.end_token = cell, start_token, end_token
        self.beam_size, self.embedding_fn, self.output_fn = beam_size, embedding_fn, output_fn

    @staticmethod
    def tile_beam_merge_with_batch(x: Any, beam_size: int) -> Any:
        """[batch, …] as [batch * beams, …], each row as often as there are beams."""
        return torch.repeat_interleave(x, beam_size, 0)

    def _beams(self, x: Any) -> Any:
        return torch.unflatten(x, 0, (-1, self.beam_size))

    @override
    def initialize(self, initial_cell_states: Any) -> Any:
        """Begin with the start token, and one beam that counts."""
        states = tree_map(
            lambda x: torch.repeat_interleave(x[:, None], self.beam_size, 1), initial_cell_states
        )
        first = tree_flatten(states)[0][0]
        flat = torch.reshape(first, (first.shape[0], self.beam_size, -1))[..., 0]
        zeros = torch.Tensor.to(torch.zeros_like(flat), torch.float32)
        far = torch.cat([zeros[:, :1], zeros[:, 1:] - FAR], 1)
        ids = torch.Tensor.to(torch.zeros_like(flat), torch.int64) + self.start_token
        inputs = self.embedding_fn(ids) if self.embedding_fn else ids
        finished = torch.ne(zeros, 0)
        lengths = torch.zeros_like(ids) - 0
        return inputs, Beams(states, far, finished, lengths), finished

    @override
    def step(self, time: Any, inputs: Any, states: Any, **kwargs: Any) -> Any:
        """One token more for the likeliest beams."""
        merged = tree_map(lambda x: torch.flatten(x, 0, 1), (inputs, states.cell_states))
        outputs, after = self.cell(merged[0], merged[1], **kwargs)
        logits = self.output_fn(outputs) if self.output_fn else outputs
        found, kept = self._chosen(self._beams(logits), tree_map(self._beams, after), states)
        ids = found.predicted_ids
        return found, kept, self.embedding_fn(ids) if self.embedding_fn else ids, kept.finished

    def _chosen(self, logits: Any, after: Any, before: Beams) -> tuple[Found, Beams]:
        words = int(logits.shape[-1])
        own = torch.Tensor.to(F.log_softmax(logits, -1), torch.float32)
        ended = torch.zeros_like(own) - FAR
        at_end = torch.eq(torch.arange(words), self.end_token)
        ended = torch.where(at_end, torch.zeros_like(ended), ended)
        own = torch.where(before.finished[..., None], ended, own)
        scores = torch.flatten(own + before.log_probs[..., None], 1)
        best, at = torch.topk(scores, self.beam_size, 1)
        parents = torch.div(at, words, rounding_mode="floor")
        ids = torch.remainder(at, words)

        def picked(x: Any) -> Any:
            shape = (-1, self.beam_size, *[1] * (x.dim() - 2))
            return torch.gather(x, 1, torch.Tensor.expand_as(torch.reshape(parents, shape), x))

        finished = picked(before.finished)
        lengths = picked(before.lengths) + torch.Tensor.to(torch.logical_not(finished), torch.int64)
        finished = torch.logical_or(finished, torch.eq(ids, self.end_token))
        return Found(best, ids, parents), Beams(tree_map(picked, after), best, finished, lengths)

    @override
    def finalize(self, outputs: Any, final_states: Any, sequence_lengths: Any) -> Any:
        """The tokens of each beam, from its end back to its begin."""
        return gather_tree(outputs.predicted_ids, outputs.parent_ids), final_states

    @property
    @override
    def tracks_own_finished(self) -> bool:
        """Beams change places, and take along whether they have ended."""
        return True


def gather_tree(ids: Any, parents: Any) -> Any:
    """Tokens [steps, batch, beams] by the beams that ended with them."""
    settle(ids, parents)

    def followed(ids: Tensor, parents: Tensor) -> Tensor:
        found = [ids[-1]]
        at = parents[-1]
        for step in range(len(ids) - 2, -1, -1):
            found.append(ids[step].gather(1, at))
            at = parents[step].gather(1, at)
        return torch.stack(found[::-1])

    if not isinstance(ids, Variable):
        return followed(ids, parents)
    like = fake(ids.fake.shape, ids.fake.dtype)
    return operator(followed, ids, parents, like=like, by_numbers=True)


def dynamic_decode(  # noqa: PLR0917 (the order of Paddle)
    decoder: Any,
    inits: Any = None,
    max_step_num: int | None = None,
    output_time_major: bool = False,
    impute_finished: bool = False,
    is_test: bool = False,
    return_length: bool = False,
    **kwargs: Any,
) -> Any:
    """Run a decoder until every sequence has ended: what it makes of outputs, and its states."""
    inputs, states, finished = decoder.initialize(inits)
    leaves, form = tree_flatten((inputs, states, finished))
    settle(*leaves)
    graph = default_main_program().graph
    time = torch.zeros_like(torch.flatten(finished)[:1], dtype=torch.int64)
    lengths = torch.Tensor.to(torch.zeros_like(finished), torch.int64)
    first = [time, lengths, *leaves]
    held = [torch.clone(value) for value in first]
    last = last_of(graph)
    ins, kept, done = tree_unflatten(held[2:], form)
    outputs, after, following, over = decoder.step(held[0], ins, kept, **kwargs)
    if decoder.tracks_own_finished:
        longer = after.lengths if hasattr(after, "lengths") else held[1]
    else:
        over = torch.logical_or(over, done)
        longer = held[1] + torch.Tensor.to(torch.logical_not(done), torch.int64)
    if impute_finished:
        after = tree_map(lambda new, old: _stays(done, old, new), after, kept)
    nexts = [held[0] + 1, longer, *tree_flatten((following, after, over))[0]]
    shown, shown_form = tree_flatten(outputs)
    limit = LIMIT if max_step_num is None else int(max_step_num) + 1
    found, final = _until_over(behind(graph, last), (held, first), nexts, shown, limit)
    _, states, _ = tree_unflatten(final[2:], form)
    made, states = decoder.finalize(tree_unflatten(found, shown_form), states, final[1])
    if not output_time_major:
        made = tree_map(lambda x: torch.transpose(x, 0, 1), made)
    return (made, states, final[1]) if return_length else (made, states)


def _stays(done: Any, old: Any, new: Any) -> Any:
    return torch.where(torch.reshape(done, (-1, *[1] * (new.dim() - 1))), old, new)


def _until_over(
    nodes: list[fx.Node],
    memories: tuple[list[Any], list[Any]],
    nexts: list[Any],
    shown: list[Any],
    limit: int,
) -> tuple[list[Any], list[Any]]:
    """One operator in place of a step, repeated until the last memory is true everywhere."""
    program, (held, first) = default_main_program(), memories
    steps, inner = Steps(nodes), {variable.node for variable in held}
    wanted = [*(n.node for n in nexts), *(s.node for s in shown)]
    outer = [*steps.used, *(node for node in wanted if node not in steps.computed)]
    given = [node for node in dict.fromkeys(outer) if node not in inner]

    def decode(*values: Any, training: bool = True) -> list[Tensor]:
        state, rest = list(values[: len(held)]), values[len(held) :]
        constant = dict(zip(given, rest, strict=True))
        kept: list[list[Tensor]] = [[] for _ in shown]
        for _ in range(limit):
            known = {**constant, **{v.node: x for v, x in zip(held, state, strict=True)}}
            steps.run(known, training=training, device=device_of(values))
            for row, variable in zip(kept, shown, strict=True):
                row.append(known[variable.node])
            state = [known[variable.node] for variable in nexts]
            if bool(state[-1].all()):
                break
        return [*(torch.stack(row) for row in kept), *state]

    likes = [
        *(fake([None, *v.fake.shape], v.fake.dtype) for v in shown),
        *(fake(v.fake.shape, v.fake.dtype) for v in first),
    ]
    rest = [Variable(node.meta["val"], node, program) for node in given]
    made = operator(decode, *first, *rest, like=likes, by_numbers=True, training=True)
    taken_out(program, nodes)
    return made[: len(shown)], made[len(shown) :]
