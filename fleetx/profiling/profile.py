"""A profile as a user gets it."""

import json
from dataclasses import dataclass
from pathlib import Path

from fleetx.profiling.findings import Findings
from fleetx.profiling.pictures import draw, page


@dataclass(frozen=True, kw_only=True)
class Profile(Findings):
    """Where the time of a step goes on all workers, and what would help; prints as a table."""

    def save(self, folder: str | Path) -> list[Path]:
        """Write the table, the numbers and pictures; where each is.

        Args:
            folder: is made if it does not exist.
        """
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        written = {
            "profile.txt": f"{self}\n",
            "profile.json": json.dumps(self.to_json(), indent=1),
            "profile.html": page(self),
        }
        for name, text in written.items():
            (place / name).write_text(text, encoding="utf-8")
        picture = draw(self, place / "profile.png")
        return [*(place / name for name in written), *picture]
