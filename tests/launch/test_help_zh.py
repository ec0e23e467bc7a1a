"""`fleetrun --help` in Chinese: all of it, on request alone, in lines that fit."""

import argparse
import re
import unicodedata

import pytest

from fleetx.launch import help_zh
from fleetx.launch.arguments import _build_parser, parse

SAYS = "启动分布式 PyTorch 任务"


def shown(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as stop:
        parse(argv)
    assert stop.value.code == 0
    return capsys.readouterr().out


def flags() -> list[argparse.Action]:
    return [action for action in _build_parser()._actions if action.option_strings]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environ", "argv", "chinese"),
    [
        ({}, ["--help"], False),
        ({"LANG": "zh_CN.UTF-8"}, ["--help"], True),
        ({"LANG": "zh_CN.UTF-8"}, ["-h"], True),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN"}, ["--help"], True),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, ["--help"], False),
        ({"LANG": "zh_CN.UTF-8"}, ["--lang", "en", "--help"], False),
        ({}, ["--lang", "zh", "--help"], True),
        ({}, ["--help", "--lang=zh"], True),
    ],
)
def test_the_language_is_asked_for(
    environ: dict[str, str],
    argv: list[str],
    chinese: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert (SAYS in shown(argv, capsys)) is chinese


def test_every_flag_group_and_example_has_its_chinese() -> None:
    named = [{*action.option_strings} & {*help_zh.FLAGS} for action in flags()]
    assert all(len(keys) == 1 for keys in named), "one text for each flag"
    assert {key for keys in named for key in keys} == {*help_zh.FLAGS}, "and none besides"
    parser = _build_parser()
    titles = {group.title for group in parser._action_groups if group._group_actions}
    assert titles - {"positional arguments"} == {*help_zh.GROUPS}
    for one, other in zip(
        (parser.epilog or "").splitlines()[1:], help_zh.EXAMPLES.splitlines()[1:], strict=True
    ):
        assert one[:54] == other[:54], "the same commands"


def test_chinese_texts_name_what_the_english_ones_name() -> None:
    name = re.compile(r"--\w+|\d+|[A-Z][A-Z_]+[A-Z]|\w+\.\w+|'\w+'", re.ASCII)
    for action in flags():
        (text,) = (help_zh.FLAGS[f] for f in action.option_strings if f in help_zh.FLAGS)
        assert action.help
        assert {*name.findall(action.help)} == {*name.findall(text)}, action.help


def test_lines_fit_and_are_in_the_character_set_of_old_terminals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shown(["--help", "--lang", "zh"], capsys)
    assert out.startswith("用法：fleetrun")
    columns = {
        line: sum(2 if unicodedata.east_asian_width(mark) in "WF" else 1 for mark in line)
        for line in out.splitlines()
    }
    assert not {line for line, width in columns.items() if width > 100}
    options = [line for line in columns if not line.startswith("  fleetrun ")]
    assert not [line for line in options if columns[line] > 80]
    out.encode("gb2312")


def test_lines_break_between_characters_and_never_before_a_stop() -> None:
    assert help_zh.lines("使用的卡，每张卡 one 个", 9) == ["使用的", "卡，每张", "卡 one 个"]


def test_errors_stay_english(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    with pytest.raises(SystemExit):
        parse([])
    assert "no training script was given" in capsys.readouterr().err


def test_a_job_runs_the_same_with_it() -> None:
    assert parse(["--lang", "zh", "train.py"]) == parse(["train.py"])
