"""The command as a whole, as far as it goes without starting anything."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetx.launch import devices
from fleetx.launch.__main__ import command, main
from fleetx.launch.arguments import parse
from fleetx.launch.errors import PASSED_ON, STOPPING
from tests.launch.conftest import CLEAN


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder with a script, no platform variables, no cards, and our signal handlers back."""
    handlers = {number: signal.getsignal(number) for number in STOPPING + PASSED_ON}
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(CLEAN)]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(devices, "count", lambda: 0)
    Path("train.py").write_text("raise AssertionError('started')")
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["missing.py"], "'missing.py' does not exist"),
        (["."], "'.' is a folder"),
        (["-m", "no.such.module"], "-m no.such.module names a module that is not found"),
        (["--gpus", "0,1", "train.py"], "can use no card here; use --gpus none"),
        (["--ips", "10.255.255.1,10.255.255.2", "train.py"], "holds no address of this machine"),
        (
            ["--ips", "10.0.0.1,10.0.0.2", "--node_ip", "10.0.0.3", "train.py"],
            "--node_ip 10.0.0.3 is not in --ips 10.0.0.1,10.0.0.2",
        ),
        (["--ips", "127.0.0.1,127.0.0.2", "train.py"], "say which one this launcher is"),
        (["--ips", "127.0.0.1,127.0.0.1", "train.py"], "127.0.0.1 twice"),
        (["--ips", "a,,b", "train.py"], "empty entry"),
        (["--ips", "a,b", "--nnodes", "2", "train.py"], "two ways to name the machines"),
        (["--nnodes", "2", "train.py"], "needs a place where the machines meet"),
        (["--nnodes", "two", "train.py"], "'two' is not a number of machines"),
        (["--nnodes", "3:2", "train.py"], "not fall"),
        (["--nnodes", "2", "--master", "here", "train.py"], "'here' is not an address"),
        (["--nnodes", "2", "--master", "no.invalid:1", "train.py"], "no name server knows"),
        (
            ["--nnodes", "2", "--master", "127.0.0.1:9", "--rank", "2", "train.py"],
            "--rank 2 does not fit --nnodes 2",
        ),
        (["--rank", "1", "train.py"], "--rank 1 needs several machines"),
        (["--master", "127.0.0.1:9", "train.py"], "without --nnodes"),
        (["--node_ip", "127.0.0.1", "train.py"], "no others are named"),
        (
            ["--server_num=1", "--worker_num=1", "--node_ip=127.0.0.1", "train.py"],
            "start everything here",
        ),
        (["--server_num", "1", "--ips", "a,b", "train.py"], "--ips belongs to collective"),
        (["--use_paddlecloud", "train.py"], "reads the variable PADDLE_TRAINERS"),
        (["--log_dir", "train.py", "train.py"], "--log_dir train.py cannot hold the logs"),
    ],
)
def test_bad_input_is_one_sentence(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith("fleetrun: error: ")
    assert words in err
    assert err.count("\n") == 1


def test_a_busy_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["--started_port", str(port), "train.py"]) == 2
        first = capsys.readouterr().err
        flags = ["--nnodes=2", f"--master=127.0.0.1:{port}", "--rank=0"]
        assert main([*flags, "train.py"]) == 2
    assert f"port {port} of 127.0.0.1 is already in use" in first
    assert "--started_port" in first
    second = capsys.readouterr().err
    assert f"port {port} of" in second
    assert "already in use" in second
    assert "--master" in second


def test_a_dry_run_shows_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nproc_per_node", "3", "--dry_run", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "nproc_per_node: 3" in out
    assert [out.count(f"rank {rank}:") for rank in range(4)] == [1, 1, 1, 0]
    assert out.count("Distributed Envs") == 3
    assert not Path("log").exists()


def test_a_dry_run_of_servers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--server_num", "2", "--worker_num", "1", "--dry_run", "train.py"]) == 0
    out = capsys.readouterr().out
    assert out.count("PSERVER  ") == 2
    assert out.count("PADDLE_TRAINER_ID") == 1


def test_a_dry_run_before_the_machines_have_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nnodes=2:4", "--master=127.0.0.1:6379", "--dry_run", "train.py"]) == 0
    assert "when 2 to 4 machines have met at 127.0.0.1:6379" in capsys.readouterr().out


def test_platform_variables_are_used_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLE_MASTER", "127.0.0.1:6379")
    monkeypatch.setenv("PADDLE_NNODES", "2")
    assert main(["--dry_run", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "--nnodes 2 comes from PADDLE_NNODES" in out
    assert "--master 127.0.0.1:6379 comes from PADDLE_MASTER" in out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("from package import gone", "ImportError: cannot import name 'gone'"),
    ],
)
def test_a_package_that_cannot_be_imported_is_no_misspelling(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "package", raising=False)
    Path("package").mkdir()
    Path("package/__init__.py").write_text(text)
    Path("package/train.py").touch()
    assert main(["--dry_run", "-m", "package.train"]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert "spelling" not in err
    assert err.count("\n") == 1


def test_servers_of_several_machines_need_a_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POD_IP", "127.0.0.1")
    flags = ["--servers", "10.0.0.1:7000", "--workers", "127.0.0.1:7100", "train.py"]
    assert main(flags) == 2
    err = capsys.readouterr().err
    assert "server 10.0.0.1 can be reached by others" in err
    assert "FLEETX_PS_TOKEN" in err
    assert not Path("log").exists(), "something was started"
    assert main(["--dry_run", *flags]) == 0, "a dry run starts nothing that needs protection"


def test_a_meeting_point_alone_is_no_job(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PADDLE_MASTER", "127.0.0.1:6379")
    assert main(["--dry_run", "train.py"]) == 2
    assert "without --nnodes (or PADDLE_NNODES) each would train alone" in capsys.readouterr().err


def test_nothing_imports_torch_before_the_start() -> None:
    code = (
        "import sys; from fleetx.launch.__main__ import main\n"
        "assert main(['--dry_run', 'train.py']) == 0\n"
        "assert main(['missing.py']) == 2\n"
        "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


def test_a_script_of_paddle_runs_inside_of_its_reader() -> None:
    given = parse(["--paddle", "train.py", "--lr", "1"])
    assert command(given) == ("-m", "fleetx.compat", "train.py", "--lr", "1")
    assert command(parse(["--paddle", "-m", "paddle.jit"]))[:3] == ("-m", "fleetx.compat", "-m")
    assert command(parse(["train.py"])) == ("train.py",)


def test_cards_of_an_old_command_line_become_processes_where_there_are_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["--paddle", "--gpus", "0,1", "--dry_run", "train.py"]) == 0
    out = capsys.readouterr().out
    assert "there is no card here, so 2 processes run on the CPU" in out
    assert out.count("Distributed Envs") == 2
