"""The command line: every spelling, and one sentence for every mistake."""

import pytest

from fleetx.launch.arguments import Arguments, parse


def test_flags_end_where_the_script_begins() -> None:
    arguments = parse(["--gpus=0,1", "train.py", "--gpus", "9", "--dry_run"])
    assert arguments == Arguments(
        gpus="0,1", script="train.py", script_args=("--gpus", "9", "--dry_run")
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["--selected_gpus=0"], {"gpus": "0"}),
        (["--seletected_gpus", "0"], {"gpus": "0"}),
        (["--cluster_node_ips=a,b"], {"ips": "a,b"}),
        (["--trainers", "a"], {"workers": "a"}),
        (["--trainer_num", "3"], {"worker_num": 3}),
        (["--server_num=auto"], {"server_num": "auto"}),
        (["--trainer_num", "auto"], {"worker_num": "auto"}),
        (["--node_rank", "1"], {"rank": 1}),
        (["-m"], {"module": True}),
    ],
)
def test_old_spellings(old: list[str], new: dict[str, object]) -> None:
    assert parse([*old, "x"]) == Arguments(script="x", **new)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "no training script was given"),
        (["--gpus", "0"], "no training script was given"),
        (["--meeting_point", "a:1", "x"], "--meeting_point starts no script"),
        (["--nproc_per_node", "two", "x"], "'two' is not a whole number"),
        (["--nproc_per_node", "0", "x"], "0 is outside"),
        (["--started_port", "70000", "x"], "70000 is outside"),
        (["--timeout", "-1", "x"], "-1 seconds is not a time"),
        (["--gpu", "0", "x"], "fleetrun has no flag --gpu; did you mean --gpus?"),
        (["--max_restarts=3", "x"], "no flag --max_restarts; did you mean --max_restart?"),
        (["--trainer_nums", "2", "x"], "no flag --trainer_nums; did you mean --trainer_num?"),
        (["--bananas", "x"], "fleetrun has no flag --bananas; see fleetrun --help"),
    ],
)
def test_mistakes(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(argv)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("fleetrun: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_help_shows_groups_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(["--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert out.count("\n  fleetrun ") >= 5
    for flag in ("--gpus", "--ips", "--master", "--server_num", "--log_dir", "--max_restart"):
        assert flag in out
    assert max(map(len, out.splitlines())) <= 100
