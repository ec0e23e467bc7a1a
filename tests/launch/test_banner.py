"""What is printed before the start."""

from fleetx.launch import banner
from fleetx.launch.arguments import Arguments


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
