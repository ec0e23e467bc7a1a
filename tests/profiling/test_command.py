"""fleetx profile, as a user types it."""

import gzip
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fleetx.__main__ import main
from fleetx.testing.limits import stretched
from tests.launch.conftest import heed_signals
from tests.programs import python
from tests.rotation import by_turns

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
QUICK = ("--gpus", "none", "--steps", "3", "--warmup", "1")


def profile(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [python(), "-m", "fleetx", "profile", *arguments]
    return subprocess.run(
        line,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def told(folder: Path) -> dict[str, Any]:
    """The numbers, which sum to the step on every worker."""
    found: dict[str, Any] = json.loads((folder / "profile.json").read_text())
    for one in (found, *found["workers"]):
        assert sum(one["parts_seconds"].values()) == pytest.approx(one["step_seconds"])
    return found


@by_turns(1, of=3)
def test_an_example_is_measured_and_flags_are_tried(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "quickstart" / "train_fleet.py")
    done = profile(tmp_path, *QUICK, "--out", "found", script)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "epoch" not in done.stdout  # it was stopped long before
    assert "fleetx profile: 3 steps of 1 worker on CPU" in done.stdout
    assert "fleetx profile: trying strategy.amp = True" in done.stdout
    found = told(tmp_path / "found")
    assert {"data", "forward", "backward", "update", "script"} <= found["parts_seconds"].keys()
    assert all(found["parts_seconds"][name] > 0 for name in ("data", "forward", "backward"))
    assert [one["flag"] for one in found["tries"]["tried"]] == ["amp"]
    assert len(found["tries"]["before"]) == 2
    page = (tmp_path / "found" / "profile.html").read_text()
    assert "Flags that were tried on copies of the model" in page
    assert "One step of rank 0, under the profiler" in page
    assert (tmp_path / "found" / "profile.png").read_bytes().startswith(b"\x89PNG")
    with gzip.open(tmp_path / "found" / "trace-rank0.json.gz") as trace:
        assert json.load(trace)["traceEvents"]
    for name in ("profile.txt", "profile.json", "profile.html", "profile.png"):
        assert f"fleetx profile: wrote found/{name}" in done.stdout


@pytest.mark.parametrize("model", ["plain", pytest.param("transformers", marks=pytest.mark.rare)])
def test_a_model_that_waits_for_its_data(tmp_path: Path, model: str) -> None:
    done = profile(tmp_path, *QUICK, "--no-try", str(SCRIPTS / "slow_data.py"), model)
    assert done.returncode == 0, done.stdout + done.stderr
    found = told(tmp_path / "profile")
    assert found["largest"] == "data"
    assert found["parts_seconds"]["data"] > found["step_seconds"] / 2
    assert "Largest: waiting for data" in done.stdout
    assert "No flag shortens it: give the DataLoader num_workers" in done.stdout
    assert found["tries"] is None
    assert "the script came to its end" not in done.stdout


def test_two_workers_exchange(tmp_path: Path) -> None:
    script = str(SCRIPTS / "exchanging.py")
    done = profile(tmp_path, *QUICK, "--workers", "2", "--no-try", script)
    assert done.returncode == 0, done.stdout + done.stderr
    found = told(tmp_path / "profile")
    assert [one["rank"] for one in found["workers"]] == [0, 1]
    for one in found["workers"]:
        assert one["parts_seconds"]["exchange"] + one["hidden_exchange_seconds"] > 0
        assert "exchange" in one["last_traced_step"]
    assert found["slowest_rank"] in (0, 1)
    assert "* the slowest: the other waits for it in exchanges" in done.stdout
    assert "No DataLoader of torch was seen" in done.stdout
    assert "the script came to its end" not in done.stdout


@pytest.mark.rare
def test_two_workers_try_what_is_named(tmp_path: Path) -> None:
    script = str(SCRIPTS / "exchanging.py")
    flags = ("--workers", "2", "--try", "fp16_allreduce,amp")
    done = profile(tmp_path, *QUICK, *flags, script)
    assert done.returncode == 0, done.stdout + done.stderr
    found = told(tmp_path / "profile")
    tried = {one["flag"]: one["same_update"] for one in found["tries"]["tried"]}
    assert tried == {"amp": True, "fp16_allreduce": False}
    assert "changes the numbers of an update" in done.stdout


def test_checkpoints_stay_what_they_were(tmp_path: Path) -> None:
    kept = ["last.pt", "last.safetensors", "final.pt", "checkpoints/checkpoint-7/manifest.json"]
    kept += ["weights/model.safetensors", "weights/config.json"]
    for name in kept:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("of a long run")
    done = profile(tmp_path, *QUICK, "--try", "amp,sharding", str(SCRIPTS / "saving.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    # Once, though the script catches what ends it; and of what cannot be tried it is said why.
    assert done.stdout.count("fleetx profile: trying 1 flag") == 1
    why = "sharding (it spreads the model over workers, and there is one)"
    assert f"Not all flags were tried: {why}." in done.stdout
    assert "torch.save() was not carried out: checkpoints stay what they were" in done.stdout
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    own = {name for name in files if not name.startswith("profile")}
    assert own == {*kept, "checkpoints", "checkpoints/checkpoint-7", "weights"}
    assert {(tmp_path / name).read_text() for name in kept} == {"of a long run"}


def interrupted(folder: Path, batch: int) -> tuple[int, str, str]:
    """Ctrl-C in front of a batch."""
    program = subprocess.Popen(
        [python(), "-m", "fleetx", "profile", *QUICK, str(SCRIPTS / "waiting.py"), str(batch)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,  # noqa: PLW1509 - it takes no lock that a thread could hold
    )
    while not (folder / "waits").exists():
        assert program.poll() is None, program.communicate()
        time.sleep(0.05)
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=stretched(60))
    return program.returncode, out, err


def test_ctrl_c_prints_what_was_measured(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, batch=3)
    assert code == 130, out + err
    assert "fleetx profile: 2 steps of 1 worker on CPU" in out
    assert "SIGINT ended the run; this is what was measured before." in out
    found = told(tmp_path / "profile")
    assert found["workers"][0]["steps"] == 2
    assert found["hidden_exchange_seconds"] is None
    assert "Exchanges were not told apart" in out


def test_ctrl_c_before_a_step_was_timed(tmp_path: Path) -> None:
    code, out, err = interrupted(tmp_path, batch=0)
    assert code == 130, out + err
    said = "SIGINT came before a step was timed, so there is nothing to show"
    assert f"fleetx profile: error: {said}" in err


def test_ctrl_c_while_the_job_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is passed on as soon as there is somebody to pass it on to."""
    begin = subprocess.Popen
    waits = [python(), "-c", "import threading; threading.Event().wait()"]

    def begun(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGINT)
        return begin(waits, preexec_fn=heed_signals, **options)

    monkeypatch.setattr("fleetx.profiling.command.subprocess.Popen", begun)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main(["profile", "--out", str(tmp_path / "found"), __file__])
    except KeyboardInterrupt:
        pytest.fail("nobody was told")
    finally:
        signal.signal(signal.SIGINT, before)
    assert code
    assert "SIGINT came before a step was timed" in capfd.readouterr().err


def test_a_script_without_fleetx(tmp_path: Path) -> None:
    done = profile(tmp_path, *QUICK, str(ROOT / "examples" / "quickstart" / "train_torch.py"))
    assert done.returncode == 2, done.stdout + done.stderr
    assert "fleetx profile: error: the script trains without fleetx" in done.stderr
    assert "epoch" not in done.stdout  # it did not train to its end before


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        (["--steps", "0", __file__], "--steps and --workers must be at least 1"),
        (["--workers", "0", __file__], "--steps and --workers must be at least 1"),
        (["--warmup", "-1", __file__], "--warmup and --try-seconds must be at least 0"),
        (["--try-seconds", "-1", __file__], "--warmup and --try-seconds must be at least 0"),
        (["--no-try", "--try", "amp", __file__], "--no-try tries nothing"),
        (["--out", __file__, __file__], "is a file; name a folder"),
        (["--try", "amq", __file__], "--try amq: there is no flag 'amq' to try; did you mean"),
    ],
)
def test_bad_arguments_are_answered_in_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: list[str], answer: str
) -> None:
    assert main(["profile", *arguments]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fleetx profile: error: ")
    assert answer in err


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["profile", "--help"])
    assert "fleetx profile --no-try --steps 50 train.py" in capsys.readouterr().out
