"""Batches and the parts that they are cut into."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fleetx.plan.error import PlanError
from fleetx.plan.job import Job, arguments
from fleetx.plan.step import Drive, Driven, Step
from fleetx.strategies.pipeline.whole_means import WholeMeans
from fleetx.torch_internals import tree_leaves, tree_map


def micro_batches(samples: int, size: int, count: int) -> int:
    """Into how many parts a batch is cut, by their size or their number; 1 leaves it open."""
    if count == 1:
        count = max(samples // size, 1)
    elif size == 1:
        size = samples // count
    if size * count != samples:
        raise PlanError(
            f"a batch of {samples} samples cannot be cut into {count} micro-batches of "
            f"{size} (pipeline_configs['accumulate_steps'] and ['micro_batch_size']), and "
            "uneven ones would weigh samples differently. Give batches of "
            f"{max(size, 1) * count} samples (drop_last=True drops a smaller last one), or "
            "set micro_batch_size to a divisor of the batch."
        )
    return count


def one_after_the_other(job: Job, counted: Callable[[int], int]) -> Drive:
    """One rank alone: the same micro-batches without stages.

    Args:
        job: what is trained.
        counted: samples of a batch -> how many parts it is cut into.
    """
    means = WholeMeans(job)

    def drive(step: Step, batch: Any) -> Driven:
        inputs, targets = batch
        kept: list[Any] = []
        count = counted(samples_in(inputs))
        total = torch.zeros((), device=job.device)
        given, wanted = shares(inputs, count), shares(targets, count)
        counts = means.batch(wanted)
        for number, share in enumerate(given):
            outputs = job.call(share)
            with counts.of(number):
                loss = criterion_of(job)(outputs, wanted[number])
            if job.keep_outputs:
                kept.append(outputs)
            del outputs  # scores of many words are large, and backward may do without them
            step.scale(loss / count).backward()
            total += loss.detach() / count
        means.end(counts, lambda: given)
        return Driven(total, kept)

    return drive


def criterion_of(job: Job) -> Callable[[Any, Any], Tensor]:
    """Outputs and targets -> loss, without which a pipeline cannot train."""
    if job.criterion is None:
        raise PlanError(
            "strategy.pipeline = True computes the loss on its last stage, and no criterion is "
            "known; call fleet.distributed_model(model, criterion=...)."
        )
    return job.criterion


def samples_in(inputs: Any) -> int:
    """How many samples a batch has, by all of its inputs."""
    sizes = {leaf.shape[0] for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)}
    if len(sizes) != 1:
        raise PlanError(
            f"the inputs of a batch have {sorted(sizes)} samples, and a pipeline cuts all of them "
            "along their first dimension into micro-batches; give inputs of one length."
        )
    return int(next(iter(sizes)))


def shares(tree: Any, count: int) -> list[Any]:
    """A batch in equal parts, in their order."""

    def part(number: int) -> Any:
        return tree_map(
            lambda leaf: leaf.chunk(count)[number] if isinstance(leaf, Tensor) else leaf, tree
        )

    return [part(number) for number in range(count)]


def bound(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """The inputs by the names of the arguments of the model's own forward.

    Raises:
        TypeError: they are not its arguments.
    """
    args, kwargs = arguments(model, inputs)
    signature = inspect.signature(type(model).forward)
    try:
        bound = signature.bind(model, *args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(
            f"the inputs of a batch, or the sample of distributed_model, do not fit the forward of "
            f"{type(model).__name__}, which takes ({', '.join([*signature.parameters][1:])}): "
            f"{error}. A pipeline calls it with a tuple of all its arguments, or with a dict of "
            "them by their names."
        ) from None
    return dict(list(bound.items())[1:])
