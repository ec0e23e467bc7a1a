"""One stage of a pipeline as the schedules of ``torch.distributed`` see it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import P2POp, pipelining
from typing_extensions import override

from fleetx.roles.messages import Described, described
from fleetx.strategies.pipeline import transfers
from fleetx.torch_internals import backward_of_weights, weights_share_nodes

Criterion = Callable[[Any, int], tuple[Tensor, Tensor]]
"""Outputs and the number of their micro-batch -> the plain loss, and what to differentiate."""

PREFIX = "given_"
"""Before the names of model inputs, which must not meet the arguments of a schedule."""

_LOSS: Described = [[], "float32", True]
"""What the last stage returns to its schedule; the type of the loss itself is known too late."""

SPLITS_BACKWARD = torch.__version__ >= "2.13"
"""Whether torch splits a backward rightly: before, weights that a stage uses twice came out wrong,
and values without gradients stopped it."""


class Stages(Protocol):
    """All stages of a rank, as one of them sees them."""

    device: torch.device
    group: dist.ProcessGroup
    shared: bool
    """Whether other ranks compute parts of the same stage and exchange with this one."""
    splits_backward: bool
    """Whether gradients of weights come later than those of inputs."""

    @property
    def count(self) -> int:
        """How many stages there are, on all ranks."""

    def parameters(self, stage: int) -> Iterator[nn.Parameter]:
        """Those of one stage."""

    def call(self, stage: int, received: Sequence[Any], inputs: Mapping[str, Any]) -> Any:
        """Run one stage."""


class Shell(nn.Module):
    """What torch sees of one stage: the model with the part that belongs to it."""

    criterion: Criterion
    losses: list[Tensor]
    failure: Exception | None
    """What went wrong in the batch; it is raised when all ranks are through with it."""

    def __init__(self, stages: Stages, number: int, sent: list[Described]) -> None:
        super().__init__()
        vars(self).update(_stages=stages, _number=number, _sent=sent, losses=[], failure=None)

    @property
    def _is_last(self) -> bool:
        return bool(vars(self)["_number"] == vars(self)["_stages"].count - 1)

    @override
    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        stages: Stages = vars(self)["_stages"]
        return stages.parameters(vars(self)["_number"])

    @override
    def forward(self, *received: Tensor, micro_batch: Tensor, **inputs: Any) -> Any:
        if self.failure is None:
            try:
                return self._run(received, int(micro_batch), inputs)
            except Exception as error:  # raised when the batch is over
                self.note(error)
        device: torch.device = vars(self)["_stages"].device
        made = transfers.stand_in(received, vars(self)["_sent"], device)
        return made[0] if self._is_last else made

    def note(self, error: Exception) -> None:
        """Keep what went wrong until the batch is over on all ranks.

        If the stage is shared, its other ranks wait for what this one will not send any more, and
        nobody can tell them: the error is raised at once, and they end with this process.
        """
        self.failure = self.failure or error
        if vars(self)["_stages"].shared:
            raise error

    def _run(self, received: Sequence[Tensor], micro_batch: int, inputs: Mapping[str, Any]) -> Any:
        stages, number = vars(self)["_stages"], vars(self)["_number"]
        given = {name.removeprefix(PREFIX): value for name, value in inputs.items()}
        found = stages.call(number, received, given)
        if not self._is_last:
            return transfers.sent(found, vars(self)["_sent"], let_go=stages.splits_backward)
        loss, scaled = self.criterion(found, micro_batch)
        if scaled.numel() != 1:
            raise ValueError(
                f"the criterion gave a loss of the shape {list(scaled.shape)}, and a backward "
                "begins at one number; return its mean or its sum."
            )
        self.losses.append(loss.detach())
        # Its gradient is 1, in whatever type; a view could not be let go of after the backward.
        return scaled.sum(dtype=torch.float32)


class Stage(pipelining.PipelineStage):
    """torch's stage, which says when a backward begins, and sends what is waited for.

    That is a gradient for each value that wants one, of zeros where it was not used or where this
    stage failed, and none for the others. So the newest torch does by itself; 2.11 and 2.12 want a
    gradient for everything that travels.
    """

    before_backward: Callable[[bool], None]

    def __init__(
        self, stages: Stages, number: int, received: list[Described], sent: list[Described]
    ) -> None:
        outgoing = [_LOSS] if number == stages.count - 1 else sent
        self.shell = Shell(stages, number, outgoing)
        self._received, self._sent = received, sent
        self._keeps_graphs: bool | None = None
        """Whether a graph is needed for several groups of weights; None until one was there."""
        super().__init__(
            self.shell,
            number,
            stages.count,
            stages.device,
            input_args=tuple(described(known, "meta") for known in received),
            output_args=tuple(described(known, "meta") for known in outgoing),
            group=stages.group,
            # Given one, torch runs a backward in one piece and leaves the rest to it.
            dw_builder=None if SPLITS_BACKWARD else _nothing_is_left,
        )

    @override
    def _prepare_forward_infra(self, *args: Any, **kwargs: Any) -> Any:
        # 2.11 would ask for gradients of all that is received, integers included.
        trains, self.has_backward = self.has_backward, False
        try:
            return super()._prepare_forward_infra(*args, **kwargs)
        finally:
            self.has_backward = trains

    @override
    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        for place, known in zip(self.args_recv_info[fwd_chunk_id], self._received, strict=True):
            place.buffer.requires_grad_(known[2] and self.has_backward)  # type: ignore[union-attr]
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    @override
    def backward_one_chunk(
        self,
        bwd_chunk_id: int,
        loss: Any = None,
        full_backward: bool = True,
        last_backward: bool = False,
    ) -> Any:
        try:
            self.before_backward(last_backward)
            super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)
        except Exception as error:  # raised when the batch is over
            self.shell.note(_own(error))
            self.bwd_cache[bwd_chunk_id] = (None,) * len(self._received)

    @override
    def backward_maybe_with_nosync(
        self, backward_type: Any, bwd_kwargs: dict[str, Any], last_backward: bool = False
    ) -> Any:
        if backward_type != "weight":
            return super().backward_maybe_with_nosync(backward_type, bwd_kwargs, last_backward)
        weights, groups = [*self.submod.parameters()], bwd_kwargs["param_groups"]
        backward_of_weights(weights, groups, keep=self._keeps_graphs is not False)
        if self._keeps_graphs is None:  # the first one, by which the others are judged
            self._keeps_graphs = weights_share_nodes(weights, groups)
        return (), None

    @override
    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        if self.shell.failure is None:
            try:
                super().backward_weight_one_chunk(bwd_chunk_id, last_backward)
            except Exception as error:  # raised when the batch is over
                self.shell.note(_own(error))
        else:  # there may be nothing to go on with
            self.backward_state.pop(bwd_chunk_id, None)
            self.dw_runner.pop(bwd_chunk_id, None)

    @override
    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        places = zip(self.grad_recv_info.get(bwd_chunk_id, ()), self._sent, strict=False)
        unwanted = {id(place.buffer) for place, known in places if not known[2]}
        ops = super().get_bwd_recv_ops(bwd_chunk_id)
        return [op for op in ops if id(op.tensor) not in unwanted]

    @override
    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[P2POp]:
        if self.has_backward and not self.is_first:
            before = self.stage_index - 1
            self.grad_send_info = [before if known[2] else None for known in self._received]
            found = self.bwd_cache[bwd_chunk_id][: len(self._received)]
            self.bwd_cache[bwd_chunk_id] = tuple(
                self._answer(known, grad) for known, grad in zip(self._received, found, strict=True)
            )
        return super().get_bwd_send_ops(bwd_chunk_id)

    def _answer(self, known: Described, grad: Tensor | None) -> Tensor | None:
        if not known[2]:
            return None
        return described(known, self.device).detach() if grad is None else grad.contiguous()


def _nothing_is_left() -> Callable[[], None]:
    return lambda: None


def _own(error: Exception) -> Exception:
    """What a backward raised, without what torch puts around it."""
    cause = error.__cause__
    wrapped = "Failed to run stage backward" in str(error)
    return cause if wrapped and isinstance(cause, Exception) else error
