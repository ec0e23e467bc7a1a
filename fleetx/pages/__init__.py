"""The look that all pages of fleetx share: one stylesheet, and the parts that pages are made of.

A page is one file that needs nothing else, in light and in dark. Texts are escaped here, so callers
pass plain ones; parts are what functions of this package return.
"""

from fleetx.pages.charts import bars, histogram, timeline
from fleetx.pages.parts import (
    Part,
    badge,
    card,
    document,
    figure,
    head,
    note,
    paragraph,
    preformatted,
    raw,
    side_by_side,
    style,
    table,
    tiles,
    together,
)

__all__ = [
    "Part",
    "badge",
    "bars",
    "card",
    "document",
    "figure",
    "head",
    "histogram",
    "note",
    "paragraph",
    "preformatted",
    "raw",
    "side_by_side",
    "style",
    "table",
    "tiles",
    "timeline",
    "together",
]
