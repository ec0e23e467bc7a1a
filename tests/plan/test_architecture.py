"""The page on how fleetx is built: its worked example runs, and the files that it names exist."""

import re
import subprocess
from pathlib import Path

from tests.programs import python

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()


def test_the_worked_example_of_a_strategy_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)))
    done = subprocess.run([python(), str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"guard +ema +changes settle\n +with decay=0.5", done.stdout)


def test_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`(?:fleetx/)?([a-z_/]+(?:\.py|/))`", PAGE)
    assert len(named) > 30
    for name in named:
        places = [ROOT / "fleetx" / name, ROOT / "fleetx" / "static" / name, ROOT / name]
        places.append(ROOT / "fleetx" / "roles" / name)
        assert any(place.exists() for place in places), name


def test_every_package_is_in_the_table() -> None:
    folders = [path for path in (ROOT / "fleetx").iterdir() if (path / "__init__.py").exists()]
    for folder in folders:
        assert f"`{folder.name}/`" in PAGE, folder.name
