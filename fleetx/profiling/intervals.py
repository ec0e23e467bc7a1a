"""Spans of time: lists of (begin, end), in order and apart from each other."""

from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def union(spans: Iterable[Span], gap: float = 0.0) -> list[Span]:
    """All of them together.

    Args:
        spans: in any order.
        gap: spans that are no farther apart become one.
    """
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin - found[-1][1] <= gap:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def common(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """What lies in both."""
    found: list[Span] = []
    at = other = 0
    while at < len(first) and other < len(second):
        begin = max(first[at][0], second[other][0])
        end = min(first[at][1], second[other][1])
        if begin < end:
            found.append((begin, end))
        if first[at][1] < second[other][1]:
            at += 1
        else:
            other += 1
    return found


def without(first: Sequence[Span], second: Sequence[Span]) -> list[Span]:
    """What lies in the first and not in the second."""
    if not first:
        return []
    edges = [first[0][0], *(edge for span in second for edge in span), first[-1][1]]
    outside = [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    return common(first, [(begin, end) for begin, end in outside if begin < end])


def length(spans: Iterable[Span]) -> float:
    """How long they are together."""
    return sum(end - begin for begin, end in spans)
