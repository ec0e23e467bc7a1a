"""The result of a comparison, for programs (JSON) and for people (HTML)."""

import base64
import html
import json
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fleetx.evaluate.comparison import Comparison
from fleetx.evaluate.pictures import png

_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em } td, th { padding: .2em .8em .2em 0; text-align: left }
.good { color: #176b2c } .bad { color: #a40e26 }
figure { display: inline-block; width: 15em; margin: 0 1em 1em 0; vertical-align: top }
figure img { max-width: 100%; image-rendering: pixelated; border: 1px solid #ccc }
figcaption { font-size: .85em; overflow-wrap: anywhere }
"""


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
        mark = "good" if self.agree else "bad"
        rows = "".join(
            f"<tr><th>{html.escape(name)}<td>{html.escape(_shown(value))}"
            for name, value in self.numbers().items()
        )
        pairs = zip(self.worst, self.pictures, strict=True)
        figures = "".join(_figure(each, picture) for each, picture in pairs)
        return (
            '<!doctype html><html lang="en"><meta charset="utf-8">'
            f"<title>fleetx verify</title><style>{_STYLE}</style>"
            f'<h1 class="{mark}">{html.escape(self.sentence)}</h1>'
            f"<p>Model {html.escape(self.model)}</p><table>{rows}</table>"
            f"<h2>The inputs that are farthest apart</h2>{figures}</html>\n"
        )


def _figure(worst: Worst, picture: NDArray[np.float32]) -> str:
    data = base64.b64encode(png(picture)).decode()
    return (
        f'<figure><img alt="" src="data:image/png;base64,{data}"><figcaption>'
        f"<b>{html.escape(worst.name)}</b><br>max-abs {worst.max_abs:.3g}, "
        f"cosine {worst.cosine:.6f}<br>offline top {worst.offline}<br>online top {worst.online}"
        "</figcaption></figure>"
    )


def _number(value: Any) -> Any:
    if isinstance(value, (float, np.floating)):
        return float(value) if np.isfinite(value) else None
    return value


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
