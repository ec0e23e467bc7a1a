"""Means over the targets that count, as they are on a whole batch.

A mean over some targets alone (``ignore_index``, class weights) divides by what it counts. Micro-
batches count differently, so the mean of their means is not that of the batch. Calls of
``cross_entropy`` and the like are weighed by the share of their micro-batch in what all of them
count; of other means that differ a warning tells.
"""

import inspect
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from fleetx.plan.job import Job
from fleetx.strategies.pipeline.followed_targets import FollowedTargets, tensors_in

logger = logging.getLogger(__name__)

_NAMES = ("cross_entropy", "nll_loss", "linear_cross_entropy")
_MEANS = {f: inspect.signature(f) for f in (getattr(F, n, None) for n in _NAMES) if f is not None}
"""Functions that count targets, and what they take; the last one came with torch 2.13."""
_SCALES = frozenset(
    {"div", "div_", "divide", "true_divide", "__truediv__", "__rtruediv__", "__itruediv__"}
    | {"__div__", "__rdiv__", "__idiv__", "mul", "mul_", "multiply"}
    | {"__mul__", "__rmul__", "__imul__"}
)
_USUALLY_IGNORED = -100
"""What torch, and who follows it, leave out unless they are told something else."""
_MASKED = "the criterion averages over other numbers in each micro-batch, as masks give them"
_HIDDEN = (
    f"labels that are {_USUALLY_IGNORED} are not as many in each micro-batch, and the loss seems "
    "to be a mean over the others that the model itself computes, or code of torch.compile"
)
_REMEDY = (
    "Let a criterion that is not compiled (compile_configs['criterion'] = False) call "
    "torch.nn.functional.cross_entropy, or nll_loss, on targets of train_batch, which is weighed "
    "as on the whole batch; or divide a sum by a number that is the same for all micro-batches"
)


class WholeMeans:
    """Looks after the means that the criterion of a job takes.

    Args:
        job: whose criterion is called for each micro-batch.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._batches, self._told = 0, False

    def batch(self, wanted: Sequence[Any]) -> "Batch":
        """The next batch, by the targets of its micro-batches."""
        return Batch(wanted, follows=len(wanted) > 1 and not self._job.compiled_criterion)

    def end(self, batch: "Batch", inputs: Callable[[], Sequence[Any]]) -> None:
        """A batch is over: tell once of means that are not those of whole batches.

        Who asks waits for the device, so it is done ever more rarely.
        """
        if self._told or not batch.has_losses:
            return
        self._batches += 1
        if self._batches & (self._batches - 1) or not (how := batch.uneven(inputs)):
            return
        self._told = True
        logger.warning(
            "%s. The loss is the mean of the means of micro-batches (strategy.pipeline), where "
            "samples of some count more than those of others, and not the mean of the batch. %s",
            *(how, _REMEDY),
        )


class Batch:
    """What micro-batches count, each by itself and all together.

    Args:
        wanted: the targets of each micro-batch.
        follows: whether the criterion can be looked into while it runs.
    """

    has_losses = False
    """Whether this worker calls the criterion."""

    averages = False
    """Whether the criterion makes one number of many; otherwise the model did."""

    def __init__(self, wanted: Sequence[Any], *, follows: bool) -> None:
        self.wanted, self._follows = wanted, follows
        self._counts: dict[int, list[Tensor] | None] = {}
        """By the place of a call in the criterion; None: unknown for other micro-batches."""
        self._firsts: dict[Hashable, Any] = {}
        self._flag: Tensor | None = None
        self._differs = False

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """Around the criterion of one micro-batch."""
        self.has_losses = True
        if not self._follows:
            yield
            return
        with _Watch(self, number) as watch:
            yield
        self.compare("number of means", watch.means)

    def whole(
        self, place: int, number: int, own: Tensor, elsewhere: Callable[[int], Tensor]
    ) -> Tensor | None:
        """What all micro-batches count at a call; None if nobody can know.

        Args:
            place: of the call among those of the criterion.
            number: of the micro-batch.
            own: what it counts.
            elsewhere: the number of another micro-batch -> what that one counts.
        """
        if place not in self._counts:
            self._counts[place] = self._of_all(number, own, elsewhere)
        counts = self._counts[place]
        if counts is None:
            self.compare(("count", place), own)
            return None
        self._note(counts[number] != own)
        return torch.stack(counts).sum()

    def _of_all(
        self, number: int, own: Tensor, elsewhere: Callable[[int], Tensor]
    ) -> list[Tensor] | None:
        try:
            return [own if at == number else elsewhere(at) for at in range(len(self.wanted))]
        except Exception:  # whatever it is, the criterion itself goes on
            return None

    def compare(self, what: Hashable, value: Any) -> None:
        """Hold what one micro-batch has against what the first one had."""
        first = self._firsts.setdefault(what, value)
        if isinstance(value, Tensor):
            self._note(first != value)
        else:
            self._differs |= first != value

    def _note(self, flag: Tensor) -> None:
        self._flag = flag if self._flag is None else self._flag | flag

    def uneven(self, inputs: Callable[[], Sequence[Any]]) -> str:
        """How means were taken over what differs between micro-batches, and not weighed.

        Args:
            inputs: those of each micro-batch, which may hold labels, too.
        """
        if self._differs or (self._flag is not None and bool(self._flag)):
            return _MASKED
        if self.averages or len(self.wanted) == 1:
            return ""
        found = [_ignored(both) for both in zip(self.wanted, inputs(), strict=True)]
        counts = [count for count in found if count is not None]
        differ = bool(counts) and bool((torch.stack(counts) != counts[0]).any())
        return _HIDDEN if differ else ""


class _Watch(TorchFunctionMode):
    """Sees the means that a criterion takes for one micro-batch."""

    def __init__(self, batch: Batch, number: int) -> None:
        super().__init__()
        self._batch, self._number = batch, number
        self._followed = FollowedTargets(batch.wanted[number])
        self.means = self._others = 0

    @override
    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # a criterion that its script compiles
            return func(*args, **kwargs)
        if func in _MEANS:
            return self._mean(func, args, kwargs)
        result = func(*args, **kwargs)
        self._followed.follow(func, args, kwargs, result)
        if isinstance(result, Tensor) and result.dim() == 0 and result.is_floating_point():
            self._look_at(func, args, kwargs, result)
        return result

    def _mean(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Tensor:
        """A mean over targets, weighed so that those of all micro-batches have the batch's."""
        self._batch.averages = True
        bound = _MEANS[func].bind(*args, **kwargs)
        bound.apply_defaults()
        call = bound.arguments
        if not _is_mean(call) or call["target"].is_floating_point():  # of shares, all count
            loss: Tensor = func(*args, **kwargs)
            return loss
        place, self.means = self.means, self.means + 1
        own = _counted(call["target"], call["weight"], call["ignore_index"])
        whole = self._batch.whole(place, self._number, own, partial(self._elsewhere, call))
        return _weighed(func, call, own, None if whole is None else whole / len(self._batch.wanted))

    def _elsewhere(self, call: Mapping[str, Any], number: int) -> Tensor:
        """What another micro-batch counts at the same call."""
        target, weight = call["target"], call["weight"]
        if {type(call["input"]), type(target)} != {Tensor}:  # spread over workers
            raise LookupError("only plain tensors can be weighed")
        follows = weight is not None and self._followed.knows(weight)
        wanted = [target, weight] if follows else [target]
        made = self._followed.made_of(self._batch.wanted[number], wanted)
        return _counted(made[0], made[1] if follows else weight, call["ignore_index"])

    def _look_at(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
    ) -> None:
        """Other ways to make one number: means of what was picked out, divisions by a count."""
        if self._followed.knows(result):
            return
        name, given = getattr(func, "__name__", ""), tensors_in((args, kwargs))
        counts = [tensor for tensor in given if tensor.dim() == 0 and self._followed.knows(tensor)]
        self._others += 1
        if name in _SCALES and counts:
            self._batch.compare(("scale", self._others), counts[0])
        elif given and given[0].dim() > 0:
            self._batch.averages = True
            if name != "sum" and kwargs.get("reduction") != "sum":
                self._batch.compare(("shape", self._others), given[0].shape)


def _is_mean(call: Mapping[str, Any]) -> bool:
    """Whether a loss is averaged, in its new or its old spelling."""
    old = (call.get("size_average"), call.get("reduce"))
    if any(option is not None for option in old):
        return False not in old
    return bool(call["reduction"] == "mean")


def _weighed(func: Any, call: Mapping[str, Any], own: Tensor, even: Tensor | None) -> Tensor:
    """A mean over what this micro-batch counts, by its share.

    Args:
        func: takes the mean.
        call: its arguments.
        own: what is counted here.
        even: what each micro-batch would count if all counted alike; None: nobody knows.
    """
    target, ignored = call["target"], call["ignore_index"]
    if even is None:
        loss: Tensor = func(**call)
        return loss
    if call["weight"] is not None and ignored is not None:  # else 0 / 0, also in the gradients
        target = target.masked_fill(own == 0, ignored)
    loss = func(**{**call, "target": target})
    # 1 to the last bit where all count alike; and who counts nothing adds nothing.
    share = own / even
    return (torch.where(own > 0, loss, torch.zeros_like(loss)) * share).to(loss.dtype)


@torch.no_grad()
def _counted(target: Tensor, weight: Tensor | None, ignored: int | None) -> Tensor:
    """By what a mean over these targets divides."""
    counts = torch.ones_like(target, dtype=torch.bool) if ignored is None else target != ignored
    if weight is None:
        return counts.sum(dtype=torch.float64)
    each: Tensor = weight[target.masked_fill(~counts, 0).long()] * counts
    return each.sum(dtype=torch.float64)


def _ignored(values: Any) -> Tensor | None:
    """How many labels are those that are usually ignored; None where there are no labels."""
    found = [
        (tensor == _USUALLY_IGNORED).sum()
        for tensor in tensors_in(values)
        if tensor.dtype in (torch.int64, torch.int32, torch.int16)
    ]
    return torch.stack(found).sum() if found else None
