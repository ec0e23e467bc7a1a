"""The result of a comparison, for programs (JSON) and for people (HTML)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetx import pages
from fleetx.evaluate.comparison import Comparison
from fleetx.evaluate.pictures import png

WORDS = {
    "inputs": "inputs",
    "max_abs": "largest difference of a number",
    "mean_max_abs": "mean of each input's largest",
    "min_cosine": "smallest cosine",
    "mean_cosine": "mean cosine",
    "top_k_agreement": "inputs with the same top {k}",
}
"""Numbers of a report -> what people call them."""


@dataclass(frozen=True)
class Worst:
    """One of the inputs that are farthest apart."""

    name: str
    max_abs: float
    cosine: float
    top_k: float
    offline: list[int]
    """The largest entries of the vector in the file."""
    online: list[int]
    """Those of the service's answer."""


@dataclass(frozen=True)
class Report:
    """What is written down."""

    endpoint: str
    model: str
    comparison: Comparison
    worst: list[Worst]
    pictures: list[NDArray[np.float32]]
    classes: Mapping[int, str] = field(default_factory=dict)
    """What classes are called, where that is known."""

    @property
    def agree(self) -> bool:
        """Whether the service is right."""
        return not self.comparison.complaints

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        count = len(self.comparison.max_abs)
        if self.agree:
            return f"{self.endpoint} agrees with the offline vectors on all {count} inputs."
        why = "; ".join(self.comparison.complaints)
        return f"{self.endpoint} does NOT agree with the offline vectors: {why}."

    def numbers(self) -> dict[str, Any]:
        """What a program wants to know."""
        found = self.comparison
        return {
            "agree": self.agree,
            "inputs": len(found.max_abs),
            "max_abs": _number(found.max_abs.max()),
            "mean_max_abs": _number(found.max_abs.mean()),
            "min_cosine": _number(found.cosine.min()),
            "mean_cosine": _number(found.cosine.mean()),
            "top_k_agreement": found.top_k_agreement,
            "complaints": found.complaints,
        }

    def to_json(self) -> str:
        """For programs; a number that is not finite is null."""
        worst = [{k: _number(v) for k, v in asdict(each).items()} for each in self.worst]
        whole = {"endpoint": self.endpoint, "model": self.model, **self.numbers()}
        limits = asdict(self.comparison.limits)
        return json.dumps({**whole, "limits": limits, "worst": worst}, indent=2) + "\n"

    def to_html(self) -> str:
        """For people; one file with everything in it."""
        found, limits = self.comparison, self.comparison.limits
        verdict = ("agrees", "good") if self.agree else ("does not agree", "bad")
        pairs = zip(self.worst, self.pictures, strict=True)
        return pages.document(
            "fleetx verify",
            pages.head(self.model, *verdict, below=self.sentence),
            pages.tiles(self._tiles()),
            pages.side_by_side(
                pages.card(
                    "How far the answers are from the vectors",
                    pages.histogram(
                        found.relative.tolist(),
                        label="largest difference of an input, relative to its largest number",
                        limit=limits.max_abs,
                        logarithmic=True,
                    ),
                ),
                pages.card(
                    "How far their directions are apart",
                    pages.histogram(
                        (1 - found.cosine.astype(np.float64)).tolist(),
                        label="1 - cosine",
                        limit=1 - limits.cosine,
                        logarithmic=True,
                    ),
                ),
            ),
            pages.card(
                "The inputs that are farthest apart",
                pages.raw('<div class="figures">'),
                *(self._figure(each, picture) for each, picture in pairs),
                pages.raw("</div>"),
            ),
        )

    def _tiles(self) -> list[tuple[str, str]]:
        told, top = self.numbers(), self.comparison.limits.top_k
        return [(words.format(k=top), _shown(name, told[name])) for name, words in WORDS.items()]

    def _figure(self, worst: Worst, picture: NDArray[np.float32]) -> pages.Part:
        return pages.figure(
            png(picture),
            worst.name,
            f"difference {worst.max_abs:.3g}, cosine {worst.cosine:.6f}",
            f"offline: {self._called(worst.offline)}",
            f"service: {self._called(worst.online)}",
        )

    def _called(self, classes: list[int]) -> str:
        """The largest entries by the names of their classes, where those are known."""
        named = (f"{self.classes[at]} ({at})" if at in self.classes else str(at) for at in classes)
        return ", ".join(named)


def _number(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "not finite"
    if name == "top_k_agreement":
        return f"{value:.2%}"
    if "cosine" in name:
        return f"{value:.6f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
