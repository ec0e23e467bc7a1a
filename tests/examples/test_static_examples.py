"""The examples of static programs run and learn, and their diff is what distribution costs."""

import re
import subprocess
from pathlib import Path

from tests.programs import fleetrun, python

FOLDER = Path(__file__).parent.parent.parent / "examples" / "static"


def costs(command: list[str], folder: Path) -> list[float]:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    output = result.stdout + result.stderr
    assert result.returncode == 0, output
    return [float(found) for found in re.findall(r"step \d+: cost ([\d.]+)", output)]


def test_one_process_and_two_workers_learn(tmp_path: Path) -> None:
    alone = costs([python(), str(FOLDER / "static_mlp.py")], tmp_path)
    script = str(FOLDER / "static_mlp_fleet.py")
    together = costs(fleetrun("--nproc_per_node", "2", script, "--output", "values"), tmp_path)
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
