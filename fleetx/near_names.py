"""The names that a misspelt word may have meant, for every complaint about an unknown name."""

from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import islice

ALIKE = 0.6
"""Words that share this much in the right order are alike, however many letters differ."""


def near_names(word: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """The known names that are near to a word, the nearest first."""
    return [*islice((name for names in _by_nearness(word, known) for name in names), most)]


def nearest_names(word: str, known: Iterable[str], *, most: int = 3) -> list[str]:
    """The nearest known name, and those that are as near; none when nothing is near."""
    return next(_by_nearness(word, known), [])[:most]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a complaint about a word: the nearest known names, or all of them."""
    known = list(known)
    if not (near := nearest_names(word, known)):
        return f"known: {', '.join(sorted(known))}."
    *others, last = [repr(name) for name in near]
    return f"did you mean {', '.join(others)}{' or ' * bool(others)}{last}?"


def _by_nearness(word: str, known: Iterable[str]) -> Iterator[list[str]]:
    """Names that are as near as each other, group by group: few slips first, then the alike."""
    left = sorted({*known})
    for slips in range(1 + max(1, len(word) // 4)):
        near = [name for name in left if _within(slips, word.lower(), name.lower())]
        left = [name for name in left if name not in near]
        if near:
            yield sorted(near, key=lambda name: -_likeness(word, name))
    alike = [name for name in left if _likeness(word, name) >= ALIKE]
    yield from ([name] for name in sorted(alike, key=lambda name: -_likeness(word, name)))


def _likeness(word: str, name: str) -> float:
    return SequenceMatcher(None, word.lower(), name.lower()).ratio()


def _within(limit: int, word: str, name: str) -> bool:
    """Whether so many slips explain it: a letter added, dropped, replaced, or two swapped."""
    if abs(len(word) - len(name)) > limit or len({*word} ^ {*name}) > 2 * limit:
        return False  # a slip changes the length by one, and the letters in use by two
    before: list[int] = []
    row = list(range(len(name) + 1))
    for i, letter in enumerate(word, 1):
        earlier, before, row = before, row, [i]
        for j, other in enumerate(name, 1):
            slips = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            swapped = i > 1 and j > 1 and letter == name[j - 2] and word[i - 2] == other
            row.append(min(slips, earlier[j - 2] + 1) if swapped else slips)
        if min(row) > limit:
            return False
    return row[-1] <= limit
