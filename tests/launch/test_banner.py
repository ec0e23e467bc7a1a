"""What is printed before the start."""

import pytest

from fleetx.launch import banner, collective, devices, parameter_server
from fleetx.launch.arguments import Arguments, parse
from fleetx.launch.ports import Ports


def test_the_table_is_laid_out_as_documented() -> None:
    text = banner.table({"PADDLE_TRAINER_ID": "0", "PADDLE_TRAINER_ENDPOINTS": "x" * 100})
    lines = text.splitlines()
    assert lines[0] == "    +" + "=" * 87 + "+"
    assert lines[1] == f"    |{'Distributed Envs':>40}{' ' * 22}Value{' ' * 20}|"
    assert {len(line) for line in lines} == {93}
    assert "... " + "x" * 41 in text


def test_the_configuration_is_sorted() -> None:
    lines = banner.configuration(Arguments(gpus="0,1", script="t.py")).splitlines()
    assert lines[0] == "-----------  Configuration Arguments -----------"
    assert lines[-1] == "-" * 48
    assert "gpus: 0,1" in lines
    assert lines[1:-1] == sorted(lines[1:-1])


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ([], "1 worker on the CPU of this machine; logs in log; watch: fleetx watch log"),
        (
            ["--gpus=0,1", "--log_dir=a b"],
            "2 workers on cards 0,1 of this machine; logs in a b; watch: fleetx watch 'a b'",
        ),
        (
            ["--ips=127.0.0.1,10.0.0.9", "--nproc_per_node=2", "--gpus=none"],
            "2 of 4 workers on the CPU of 127.0.0.1, machine 1 of 2; logs in",
        ),
        (
            ["--nnodes=2:4", "--master=127.0.0.1:6379", "--gpus=3"],
            "1 worker on card 3 of 127.0.0.1, which meets 1 to 3 others at 127.0.0.1:6379; logs in",
        ),
        (
            ["--server_num=1", "--worker_num=2"],
            "1 server and 2 workers on the CPU of this machine; logs in",
        ),
    ],
)
def test_one_line_says_who_runs_where(
    argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "count", lambda: 4 if any("gpus" in each for each in argv) else 0)
    arguments = parse([*argv, "train.py"])
    plan = parameter_server.plan if arguments.is_parameter_server() else collective.plan
    with Ports() as ports:
        line = banner.line(plan(arguments, {}, ports), arguments.log_dir)
    assert line.startswith(f"fleetrun: {told}")
    assert "\n" not in line
