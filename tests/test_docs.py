"""Every snippet of the documentation is complete and runs."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import fleetx
from fleetx.plan.error import PlanError
from fleetx.testing import world

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
NAMES = {page.relative_to(ROOT).as_posix(): page for page in PAGES}
STRATEGIES = sorted(name for name in NAMES if name.startswith("docs/strategies/"))
SINGLE = ("docs/checking.md", "docs/clusters.md", "docs/profile.md", "docs/roles.md")
SLOW = {"docs/strategies/compile.md"}
ON_A_CARD = {
    "docs/strategies/cuda_graph.md": r"cuda_graph = True cannot be in force on a CPU",
    "docs/strategies/fp8.md": r"fp8 = True cannot be in force here: a CPU",
}
"""Pages whose snippets a CPU refuses -> in these words."""
ELSEWHERE = {
    "docs/applications.md": "tests/data/test_docs.py",
    "docs/architecture.md": "tests/plan/test_architecture.py",
    "docs/auto.md": "tests/data/test_docs.py",
    "docs/data.md": "tests/data/test_docs.py",
    "docs/large_models.md": "tests/data/test_docs.py",
    "docs/metrics.md": "tests/data/test_docs.py",
    "docs/migrating.md": "tests/compat/test_docs.py",
    "docs/parameter_server.md": "tests/engine/test_without_servers.py",
    "docs/saving.md": "tests/static/test_docs.py",
    "docs/scripts.md": "tests/data/test_docs.py",
    "docs/static.md": "tests/static/test_docs.py",
    "docs/strategy.md": "tests/plan/test_told.py",
    "docs/testing.md": "tests/data/test_docs.py",
    "docs/trackers.md": "tests/data/test_docs.py",
    "docs/watching.md": "tests/data/test_docs.py",
}
"""Pages whose snippets go on from one to the next -> the test that runs them."""


def snippets(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def run(snippet: str) -> None:
    """On every rank, as a script of its own."""
    from fleetx import roles

    try:
        exec(compile(snippet, "a snippet", "exec"), {"__name__": "__main__"})
    finally:
        if roles.started():
            roles.stop()


@pytest.mark.parametrize("name", NAMES)
def test_snippets_begin_with_their_imports(name: str) -> None:
    for snippet in snippets(NAMES[name]):
        assert snippet.startswith(("import ", "from ")), snippet


def test_every_page_with_snippets_is_run() -> None:
    here = {*STRATEGIES, "README.md", *SINGLE}
    for name, page in NAMES.items():
        translated = name.startswith("docs/zh/")  # the same snippets, says test_docs_zh.py
        if not snippets(page) or name in here or translated:
            continue
        test = ROOT / ELSEWHERE[name]
        assert page.stem in test.read_text(), f"{test} does not run {name}"


@pytest.mark.parametrize("name", sorted({*STRATEGIES} - SLOW - ON_A_CARD.keys()))
def test_a_strategy_is_switched_on_as_its_page_says(name: str) -> None:
    for snippet in snippets(NAMES[name]):
        world(2).run(run, snippet)


@pytest.mark.rare
@pytest.mark.parametrize("name", sorted(SLOW))
def test_one_that_takes_long(name: str) -> None:
    for snippet in snippets(NAMES[name]):
        world(1).run(run, snippet)


@pytest.mark.parametrize("name", sorted(ON_A_CARD))
def test_one_that_needs_a_card_says_so(name: str) -> None:
    (snippet,) = snippets(NAMES[name])
    with pytest.raises(PlanError, match=ON_A_CARD[name]):
        world(1).run(run, snippet)


@pytest.mark.parametrize("name", SINGLE)
def test_pages_of_single_scripts(name: str) -> None:
    for snippet in snippets(NAMES[name]):
        world(1).run(run, snippet)


def test_the_first_lines_of_the_readme() -> None:
    first, second, _ = snippets(NAMES["README.md"])
    world(2).run(run, first)
    world(1).run(run, second)


@pytest.mark.rare
def test_the_layout_of_the_readme() -> None:
    _, _, third = snippets(NAMES["README.md"])
    world(8).run(run, third)


def test_every_page_is_on_the_site() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text())

    def leaves(tree: object) -> list[str]:
        if isinstance(tree, str):
            return [tree]
        parts = tree.values() if isinstance(tree, dict) else tree
        return [leaf for part in parts for leaf in leaves(part)]  # type: ignore[attr-defined]

    there = {name.removeprefix("docs/") for name in NAMES if name.startswith("docs/")}
    assert there <= {*leaves(site["nav"])}


@pytest.mark.rare
def test_the_site_is_built_without_a_warning_and_has_every_public_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = "".join(page.read_text() for page in (tmp_path / "reference").glob("*.html"))
    packages = {"applications", "metrics", "static", "utils"}
    missing = {name for name in fleetx.__all__ if f'id="fleetx.{name}"' not in pages}
    assert missing == packages, "they have pages of their own, or their names do"
    elsewhere = re.compile(r'<(?:script|link|img)[^>]*="https?://')
    assert not elsewhere.search((tmp_path / "data.html").read_text()), "it needs no other host"


@pytest.mark.rare
def test_the_package_is_built_and_passes_the_checks_of_the_index(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    ignored = shutil.ignore_patterns(".git", ".venv", "output", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, copy, ignore=ignored)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")]
    done = subprocess.run(build, cwd=copy, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    built = sorted((tmp_path / "dist").iterdir())
    assert [file.name for file in built] == [
        f"fleetx-{fleetx.__version__}-py3-none-any.whl",
        f"fleetx-{fleetx.__version__}.tar.gz",
    ]
    check = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(built[0]) as wheel:
        names = wheel.namelist()
    assert "fleetx/py.typed" in names
    assert "fleetx/config/distributed_strategy.pyi" in names
    assert {"fleetx/pages/style.css", "fleetx/watch/page/page.js"} <= {*names}
    assert not any(name.startswith(("tests/", "benchmarks/", "docs/")) for name in names)
