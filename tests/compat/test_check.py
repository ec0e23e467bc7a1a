"""``fleetx compat check`` reads a script and says what of it is covered."""

import json
import re
from pathlib import Path

import pytest

from fleetx.__main__ import main
from fleetx.compat import imports
from fleetx.compat.checking import Report, check_text
from fleetx.compat.uses import parse, uses


def names(text: str) -> dict[str, list[int]]:
    return {use.name: use.lines for use in uses(parse(text, "s.py"))}


def problems(report: Report) -> list[str]:
    return [problem.text for verdict in report.names for problem in verdict.problems]


def test_names_are_found_behind_aliases() -> None:
    text = """
import paddle.fluid as fluid
from paddle.distributed import fleet as f
from paddle.fluid.layers import fc as dense
import numpy as np
exe = fluid.Executor(fluid.CPUPlace())
y = dense(np.ones(3), size=2)
exe.run(fluid.default_startup_program())
f.init()
"""
    assert names(text) == {
        "paddle.fluid": [2],
        "paddle.distributed.fleet": [3],
        "paddle.fluid.layers.fc": [4, 7],
        "paddle.fluid.CPUPlace": [6],
        "paddle.fluid.Executor": [6],
        "paddle.fluid.Executor().run": [8],
        "paddle.fluid.default_startup_program": [8],
        "paddle.distributed.fleet.init": [9],
    }


def test_local_names_hide_those_of_modules() -> None:
    text = """
import paddle
def f(paddle):
    return paddle.nothing
def g():
    return paddle.mean
[paddle for paddle in []]
"""
    assert names(text) == {"paddle": [2], "paddle.mean": [6]}


def test_functions_see_what_is_imported_below_them() -> None:
    assert "paddle.mean" in names("def f(x):\n    return paddle.mean(x)\nimport paddle\n")


def test_a_name_that_is_missing_comes_with_its_line_and_the_nearest() -> None:
    report = check_text("import paddle\n\npaddle.enable_statik()\n", "old.py")
    (wrong,) = [verdict for verdict in report.names if not verdict.covered]
    assert (wrong.name, wrong.lines) == ("paddle.enable_statik", [3])
    assert "'enable_static'" in wrong.problems[0].text
    assert not report.fine


def test_a_method_of_a_missing_thing_is_not_told_again() -> None:
    report = check_text("import paddle\nx = paddle.nonsuch()\nx.run()\n")
    assert len(problems(report)) == 1


def test_a_keyword_that_is_not_taken_is_told() -> None:
    report = check_text("import paddle\npaddle.enable_static(fast=True)\n")
    assert problems(report) == ["paddle.enable_static does not take 'fast' here."]
    report = check_text("import paddle\npaddle.enable_static(1, 2)\n")
    assert "takes 0 arguments without a name, not 2" in problems(report)[0]


def test_options_of_unknown_names_are_let_pass() -> None:
    assert check_text("import paddle\no = {}\npaddle.enable_static(**o)\n").fine


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os\nprint 'x'\n", r"old.py:2: this is Python 2"),
        ("try:\n    pass\nexcept IOError, e:\n    pass\n", r"old.py:3: this is Python 2"),
        ("x = (\n", r"old.py:1: '\(' was never closed"),
    ],
)
def test_python_2_is_told_with_its_line(text: str, told: str) -> None:
    report = check_text(text, "old.py")
    assert re.match(told, report.error)
    assert not report.fine


def test_the_command_prints_and_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("import paddle\npaddle.enable_static()\n")
    bad.write_text("import paddle\npaddle.enable_statik()\n")
    assert main(["compat", "check", str(good)]) == 0
    assert "2 names of Paddle, 2 covered" in capsys.readouterr().out
    assert main(["compat", "check", str(good), str(bad), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [report["fine"] for report in found] == [True, False]
    assert found[1]["names"][1]["lines"] == [2]
    assert main(["compat", "check", str(tmp_path / "none.py")]) == 2


def test_checking_leaves_no_hook_behind() -> None:
    imports.uninstall()
    assert check_text("import paddle\npaddle.enable_static()\n").fine
    assert not imports.installed()


def test_env_is_for_a_shell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compat", "env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f'export PYTHONPATH="{imports.ENTRY}${{PYTHONPATH:+:$PYTHONPATH}}"'
    assert lines[1] == 'export PYTHONHASHSEED="${PYTHONHASHSEED:-0}"'
