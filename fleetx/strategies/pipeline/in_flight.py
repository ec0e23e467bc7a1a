"""How many micro-batches wait for their backward on a rank, by the order in which they run."""

from collections.abc import Iterator

Counts = tuple[int, ...]
"""For each stage of a rank, how many micro-batches wait for their backward there."""


def most_in_flight(
    mode: str, *, rank: int, ranks: int, chunks: int, count: int, splits: bool
) -> list[Counts]:
    """The moments at which a rank keeps the most, one of which takes the most memory.

    Args:
        mode: the order of forwards and backwards.
        rank: place in the pipeline.
        ranks: how many there are.
        chunks: stages on each of them.
        count: micro-batches in a batch.
        splits: whether "zero-bubble" parts gradients of weights from those of activations.
    """
    if mode == "F-then-B":
        return [(count,) * chunks]
    if mode == "1F1B":
        return [(min(count, ranks - rank),)]
    rounds = max(1, count // ranks)
    group = count // rounds
    if mode == "interleaved":
        ahead, late = (chunks - 1) * group + 2 * (ranks - 1 - rank), 0
    else:
        # Gradients of weights come later than those of activations, and so does what they need;
        # torch lets go of a backward in two pieces with the next one.
        ahead, late = (chunks - 1) * group + ranks - 1 - rank, rank + 1 if rank and splits else 0
    return list(_moments(chunks, count, group, min(ahead, chunks * count), late))


def _moments(chunks: int, count: int, group: int, ahead: int, late: int) -> Iterator[Counts]:
    """Forwards up to ``ahead``, then one forward and one backward in turn.

    Args:
        chunks: stages on the rank.
        count: micro-batches in a batch.
        group: how many of them a stage runs before the next one has its turn.
        ahead: forwards before the first backward.
        late: backwards after which the memory of one is free.
    """
    total, waiting = chunks * count, [0] * chunks
    freed = 0
    for step in range(total):
        waiting[step // group % chunks] += 1
        if step - ahead - late >= 0:
            yield tuple(waiting)
            waiting[chunks - 1 - freed // group % chunks] -= 1
            freed += 1
    yield tuple(waiting)
