"""The examples in these pages run as they stand."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.programs import python

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("page", "runner"),
    [
        ("data", []),
        ("metrics", []),
        ("applications", []),
        ("auto", []),
        ("large_models", []),
        ("trackers", []),
        ("scripts", []),
        ("watching", []),
        ("testing", ["-m", "pytest", "-q"]),
    ],
)
def test_examples_run(page: str, runner: list[str], tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL)
    file = tmp_path / "test_example.py"
    file.write_text("\n".join(blocks))
    done = subprocess.run(
        [python(), *runner, str(file)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
