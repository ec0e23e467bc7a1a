"""The examples of static programs run and learn, and their diff is what distribution costs."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / "examples" / "static"
FLEETRUN = [sys.executable, "-m", "fleetx.launch", "--nproc_per_node", "2"]


def costs(command: list[str], folder: Path) -> list[float]:
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=240, check=False
    )
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return [float(found) for found in re.findall(r"step \d+: cost ([\d.]+)", output)]


def test_one_process_and_two_workers_learn(tmp_path: Path) -> None:
    alone = costs([sys.executable, str(FOLDER / "static_mlp.py")], tmp_path)
    script = str(FOLDER / "static_mlp_fleet.py")
    together = costs([*FLEETRUN, script, "--output", "values"], tmp_path)
    for found in (alone, together):
        assert len(found) == 5, "only the first worker prints"
        assert found[-1] < 0.7 * found[0]
    assert (tmp_path / "values" / "fc_0.weight@exp_avg").exists()


def test_the_network_is_the_same_in_both() -> None:
    before = (FOLDER / "static_mlp.py").read_text().splitlines()
    after = (FOLDER / "static_mlp_fleet.py").read_text().splitlines()
    gone = [line.strip() for line in before[1:] if line not in after]
    assert gone == [
        '"""Train for a hundred runs."""',
        "exe = static.Executor(static.CPUPlace())",
        "exe.run(static.default_startup_program())",
        "rng = np.random.default_rng(0)",
        "cost_val = exe.run(static.default_main_program(), gen_data(rng), [cost])",
        'print(f"step {step + 1}: cost {cost_val[0]:.3f}")',
    ]
