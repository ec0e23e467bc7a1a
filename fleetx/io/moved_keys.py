"""Names of tensors in a checkpoint: whose they are, and what those of all workers are worth."""

import re
from dataclasses import dataclass

from typing_extensions import override

MEAN = "mean"
"""Each share of the data has its own; together they are worth their mean."""
FIRST = "first"
"""Each share has its own; another layout goes on with that of the first."""

_NAME = re.compile(r"(.*?)(?:#(mean|first)(\d+))?(?:#home(\d+))?", re.DOTALL)


@dataclass(frozen=True)
class Key:
    """The name of one tensor: ``layer.weight@exp_avg#mean1``."""

    path: str
    """The name of a parameter or buffer of the whole model, and what is kept for it."""
    how: str = ""
    """Nothing where all shares of the data have the same; else what they are together."""
    share: int = 0
    home: int | None = None
    """The stage of a pipeline that has a copy of a tied parameter; copies add up."""

    @override
    def __str__(self) -> str:
        share = f"#{self.how}{self.share}" if self.how else ""
        return f"{self.path}{share}{'' if self.home is None else f'#home{self.home}'}"

    @classmethod
    def parse(cls, text: str) -> "Key":
        """The inverse."""
        match = _NAME.fullmatch(text)
        assert match is not None, "the pattern takes every text"
        path, how, share, home = match.groups()
        return cls(path, how or "", int(share or 0), None if home is None else int(home))
