"""Searches of ``paddle.fluid.layers`` whose rounds a run counts: refused by name."""

from typing import Any

from fleetx.compat.paddle.fluid.layers.common import refused

_WHY = "keeps beams of different lengths as nested records between rounds that a run counts"
_INSTEAD = "decode in Python: run the program for one step, and torch.topk over its scores"


def beam_search(  # noqa: PLR0917
    pre_ids: Any,
    pre_scores: Any,
    ids: Any,
    scores: Any,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """Refused."""
    raise refused("layers.beam_search", f"beam_size={beam_size}", _WHY, _INSTEAD)


def beam_search_decode(
    ids: Any, scores: Any, beam_size: int, end_id: int, name: str | None = None
) -> Any:
    """Refused."""
    raise refused("layers.beam_search_decode", f"beam_size={beam_size}", _WHY, _INSTEAD)
