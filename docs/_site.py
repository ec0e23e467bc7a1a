"""Pages of the site that are made of other files: the README, figures, examples, the reference.

mkdocs calls `on_config` and `on_files` before it builds (`hooks:` in mkdocs.yml).
"""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

import fleetx

ROOT = Path(__file__).parent.parent
SPREAD = {
    "training": ("fleetx.api", "fleetx.checking", "fleetx.profiling"),
    "strategy": ("fleetx.config", "fleetx.plan"),
    "workers": ("fleetx.roles",),
    "data": ("fleetx.data",),
    "saving": ("fleetx.io",),
    "metrics": ("fleetx.metrics",),
    "servers": ("fleetx.api.servers", "fleetx.nn"),
    "static": ("fleetx.static",),
    "testing": ("fleetx.testing",),
    "more": ("fleetx.applications",),
}
"""Page of the reference -> whose public names are there; the longest name decides."""
PACKAGES = ("metrics", "nn", "static", "testing")
"""Packages with public names of their own."""
MOVED = {
    r"\]\((?:\.\./)+README\.md": "](index.md",
    r"\]\((?:\.\./)+README\.zh\.md": "](zh/index.md",
    r"\]\((?:\.\./)+benchmarks/README\.md": "](benchmarks.md",
    r"\]\((?:\.\./)+CHANGELOG\.md": "](changes.md",
    r"\]\((?:\.\./)+examples/[^)#]*": "](examples.md",
    r"\]\((?:\.\./)+CONTRIBUTING\.md[^)]*": "](architecture.md",
}
"""Links of the docs to what is not among them."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Let Chinese headings have anchors, as they have on GitHub."""
    config.mdx_configs["toc"]["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of this folder."""
    made = {
        "index.md": _of_root((ROOT / "README.md").read_text()),
        "zh/index.md": _of_zh(_of_root((ROOT / "README.zh.md").read_text())),
        "benchmarks.md": _of_root((ROOT / "benchmarks/README.md").read_text(), "benchmarks/"),
        "changes.md": _of_root((ROOT / "CHANGELOG.md").read_text()),
        "examples.md": _examples(),
        **{f"reference/{name}.md": text for name, text in _reference().items()},
    }
    for place, text in made.items():
        files.append(File.generated(config, place, content=text))
    for picture in sorted((ROOT / "benchmarks").glob("*.png")):
        files.append(File.generated(config, picture.name, content=picture.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead to where pages are on the site."""
    up = "../" * page.file.src_uri.count("/")
    for pattern, target in MOVED.items():
        markdown = re.sub(pattern, target.replace("](", f"]({up}"), markdown)
    return markdown


def _of_root(text: str, folder: str = "") -> str:
    """A page of another folder, with its links turned to this one."""
    text = re.sub(r"\]\((?:\.\./)?docs/", "](", text)
    text = re.sub(r"\]\(benchmarks/README\.md", "](benchmarks.md", text)
    text = re.sub(r"\]\(README\.md", "](index.md", text)
    text = re.sub(r"\]\(README\.zh\.md", "](zh/index.md", text)
    text = re.sub(r"\]\(CHANGELOG\.md", "](changes.md", text)
    text = re.sub(r"\]\(CONTRIBUTING\.md[^)]*", "](architecture.md", text)
    text = re.sub(r"\]\((?:\.\./)?examples/[^)#]*", "](examples.md", text)
    if folder:
        text = re.sub(r"\]\((?!https?:|#|\.\./)([\w/]+\.(?:py|json))[^)]*\)", r"] (`\1`)", text)
    return text


def _of_zh(text: str) -> str:
    """A page of the site's root, with its links turned to the folder of Chinese pages."""
    text = re.sub(r"\]\((?!https?:|#)", "](../", text)
    return text.replace("](../zh/", "](")


def _examples() -> str:
    """One row for each script, with its own first sentence."""
    rows = []
    for script in sorted((ROOT / "examples").rglob("*.py")):
        tree = ast.parse(script.read_text())
        said = (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")
        main = any(isinstance(node, ast.If) for node in tree.body)
        if said and main:
            rows.append(f"| `{script.relative_to(ROOT)}` | {said} |")
    return "\n".join(
        [
            "# Examples",
            "",
            "Each runs as it stands, by `python` or on several workers by `fleetrun`.",
            "",
            "| script | what it shows |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _reference() -> dict[str, str]:
    pages: dict[str, list[str]] = {name: [] for name in SPREAD}
    for name, home in sorted(_public()):
        pages[_page(home)].append(name)
    made = {
        page: f"# {page.capitalize()}\n\n" + "\n".join(f"::: {name}\n" for name in names)
        for page, names in pages.items()
    }
    rows = [
        f"| [`{name}`]({page}.md#{name}) | {page} |"
        for page, names in pages.items()
        for name in names
    ]
    head = "# Every public name\n\n`import fleetx as fleet`; `fleetx.init` is `fleet.init`.\n"
    made["index"] = "\n".join([head, "| name | page |", "|---|---|", *rows, ""])
    return made


def _page(home: str) -> str:
    fits = [
        (len(room), page)
        for page, rooms in SPREAD.items()
        for room in rooms
        if home.startswith(room)
    ]
    return max(fits)[1] if fits else "more"


def _public() -> Iterator[tuple[str, str]]:
    """Public name, as the reference finds it without running code -> where it is written."""
    for name in fleetx.__all__:
        if hasattr(getattr(fleetx, name), "__module__"):
            yield f"fleetx.{name}", fleetx._HOMES.get(name, "fleetx.roles")
    for package in PACKAGES:
        module = importlib.import_module(f"fleetx.{package}")
        for name in module.__all__:
            loads_late = name not in vars(module)
            home = getattr(module, name).__module__ if loads_late else module.__name__
            yield f"{home}.{name}", module.__name__
