"""fleetx check, as a user types it."""

import argparse
import subprocess
from pathlib import Path

import pytest

from fleetx.__main__ import main
from fleetx.checking import command
from fleetx.launch import devices
from tests.programs import python

SCRIPT = str(Path(__file__).parent / "scripts" / "merged.py")


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [python(), "-m", "fleetx", "check", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_script_is_run_with_and_without_each_flag(tmp_path: Path) -> None:
    page = tmp_path / "out" / "check.html"
    done = check("--batches", "6", "--gpus", "none", "--report", str(page), SCRIPT)
    assert "Weights without fp16_allreduce" in page.read_text(), done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "running" in line] == [
        "fleetx check: running as it is …",
        "fleetx check: running as it is, again …",
        "fleetx check: running without fp16_allreduce …",
        "fleetx check: running without gradient_merge …",
    ]
    assert "fleetx check: fp16_allreduce, gradient_merge; 6 batches on 2 workers" in lines
    assert any(line.startswith("  fp16_allreduce  within") for line in lines)
    assert any(line.startswith("  gradient_merge  in force") for line in lines)
    assert "  repeat          equal      a second run ends with the same weights (0.0e+00)" in lines
    brought = "workers brought different weights (weight, bias); all began with worker 0's"
    assert f"  start           apart      {brought}" in lines
    assert "  ranks           equal      all 2 workers hold the same weights" in lines
    assert lines[-2:] == [
        "Every flag does what it promises here.",
        f"fleetx check: wrote {page}",
    ]


def test_a_refused_plan_is_shown_with_its_reason() -> None:
    done = check("--gpus", "none", SCRIPT, "--refused")
    assert done.returncode == 1
    assert "fp16_allreduce needs an exchange of gradients between workers" in done.stderr


def test_bad_arguments_are_answered_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    missing = check("nowhere.py")
    assert missing.returncode == 2
    assert missing.stderr == "fleetx check: error: there is no script 'nowhere.py'\n"
    assert main(["check", "--batches", "0", SCRIPT]) == 2
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--help"])
    assert "fleetx check --workers 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cards", "flags", "workers", "gpus"),
    [
        (0, [], 2, None),
        (1, [], 2, "none"),
        (1, ["--workers", "1"], 1, None),
        (8, [], 2, None),
        (8, ["--gpus", "3"], 1, "3"),
        (1, ["--gpus", "none", "--workers", "4"], 4, "none"),
    ],
)
def test_workers_fit_the_cards_there_are(
    monkeypatch: pytest.MonkeyPatch, cards: int, flags: list[str], workers: int, gpus: str | None
) -> None:
    monkeypatch.setattr(devices, "here", lambda: cards)
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    args = parser.parse_args([*flags, SCRIPT])
    assert command._choose_workers(args) is None
    assert (args.workers, args.gpus) == (workers, gpus)


def test_too_many_workers_are_refused_in_the_words_of_this_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(devices, "here", lambda: 1)
    assert main(["check", "--workers", "3", SCRIPT]) == 2
    err = capsys.readouterr().err
    assert "--workers 3 is more than the 1 card(s)" in err
    assert "--nproc_per_node" not in err


def test_a_script_that_trains_nothing_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "idle.py"
    script.write_text("import fleetx as fleet\nfleet.init(is_collective=True)\n")
    done = check("--gpus", "none", "--workers", "1", str(script))
    assert done.returncode == 2
    assert "the script trained no batch of a distributed model" in done.stderr


def test_a_clip_of_the_optimizer_is_left_out_like_a_flag(tmp_path: Path) -> None:
    text = Path(SCRIPT).read_text()
    plain = text.replace("strategy.fp16_allreduce = True", "").replace(
        "strategy.gradient_merge = True", ""
    )
    script = tmp_path / "clipped.py"
    given = "lr=0.1), grad_clip=fleet.ClipGradByGlobalNorm(0.01))"
    script.write_text(plain.replace("lr=0.1))", given))
    done = check("--gpus", "none", "--workers", "1", "--batches", "3", str(script))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "  clip    in force   changes the update by design" in done.stdout


UNSTEADY = str(Path(SCRIPT).parent / "unsteady.py")


@pytest.mark.parametrize(
    ("flaw", "words"),
    [
        ("data", "a second run was fed other data, from batch 1 on"),
        ("noise", "away, most in fc."),
    ],
)
def test_a_script_that_does_not_do_the_same_twice_is_told_why(flaw: str, words: str) -> None:
    done = check("--gpus", "none", "--workers", "1", "--batches", "2", UNSTEADY, flaw)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert [line for line in lines if "running" in line] == [
        "fleetx check: running as it is …",
        "fleetx check: running as it is, again …",
    ], "the runs without gradient_merge would tell nothing"
    found = [line for line in lines if line.startswith("  repeat  UNLIKE")]
    assert len(found) == 1
    assert words in found[0]
    assert lines[-1].startswith("No flag was judged")


def test_workers_that_begin_with_other_weights_are_found_by_name() -> None:
    done = check("--gpus", "none", "--batches", "2", UNSTEADY, "loaded")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "  start   WRONG      workers differ before the first batch, in fc." in done.stdout
    torn = [line for line in done.stdout.splitlines() if line.startswith("  ranks")]
    assert "most in fc." in torn[0]
    assert "fc.weight" in torn[0]
    assert "fc.bias" in torn[0]
    assert "Do not train with this: start, ranks." in done.stdout
