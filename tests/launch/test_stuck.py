"""Ranks that stand still, end early or go out of order are named; real jobs of real processes."""

import signal
from pathlib import Path

import pytest

from fleetx.testing.limits import stretched
from tests.launch.conftest import Launcher, Outcome
from tests.ports import free_ports
from tests.rotation import by_turns

ROOT = Path(__file__).parent.parent.parent

PLAIN = """
import os, time, torch, fleetx as fleet
rank = int(os.environ["RANK"])

def batches(count):
    for number in range(count):
        trouble(number)
        yield torch.randn(4, 8), torch.randn(4, 2)

def train(count):
    fleet.init(is_collective=True)
    model = fleet.distributed_model(torch.nn.Linear(8, 2))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for x, y in batches(count):
        optimizer.minimize(torch.nn.functional.mse_loss(model(x), y))
    return model
"""


def soon() -> str:
    """Seconds after which a job is ended; more where everything takes longer."""
    return f"{min(stretched(3), 9):.1f}"


def run(launcher: Launcher, script: str, *flags: str, workers: int = 2, **more: str) -> Outcome:
    name = launcher.script(script)
    return launcher.run("--nproc_per_node", str(workers), *flags, name, **more)


def line_of(script: str, words: str) -> int:
    return next(at for at, line in enumerate(script.splitlines(), 1) if words in line)


def test_a_rank_that_reads_data_for_too_long_is_named_and_ends_the_job(launcher: Launcher) -> None:
    script = f"""{PLAIN}
def trouble(number):
    if rank == 1 and number == 3:
        time.sleep(300)
train(5)
"""
    outcome = run(launcher, script, "--stuck_after", soon())
    line = line_of(script, "time.sleep(300)")
    assert outcome.code == 124, outcome.err
    assert f"rank 1 has been reading data at train.py:{line} for" in outcome.err
    told = "(step 3); rank 0 waits for it in the all-reduce of data_parallel"
    assert told in outcome.err
    assert "rank 1 failed first (exit code 124)" in outcome.err
    for rank in range(2):
        assert f"stack of rank {rank}, innermost call first:" in outcome.err
    assert "in trouble" in outcome.err
    assert "in minimize" in outcome.err


@pytest.mark.rare
def test_by_default_the_job_goes_on_and_the_end_of_the_wait_is_told(launcher: Launcher) -> None:
    script = f"""{PLAIN}
def trouble(number):
    if rank == 1 and number == 3:
        while not os.path.exists("named"):
            time.sleep(0.05)
train(5)
print("through")
"""
    process = launcher.start(
        "--nproc_per_node", "2", launcher.script(script), FLEETX_STUCK_WARNING="2"
    )
    assert process.stderr is not None
    told = []
    for line in process.stderr:
        told.append(line)
        if "rank 1 has been reading data" in line:
            (launcher.folder / "named").touch()
    assert process.wait() == 0, told
    assert any("the wait for rank 1 is over" in line for line in told), told
    assert "through" in launcher.log("workerlog.1")


@pytest.mark.parametrize(
    "last", ["pass", pytest.param("fleet.barrier_worker()", marks=pytest.mark.rare)]
)
def test_different_numbers_of_batches_are_named(launcher: Launcher, last: str) -> None:
    script = f"""{PLAIN}
trouble = lambda number: None
train(5 - rank)
{last}
"""
    outcome = run(launcher, script, "--stuck_after", soon())
    assert outcome.code != 0
    assert "all ranks must make the same number of batches" in outcome.err, outcome.err
    assert "rank 0 has begun 5 batches, rank 1 has begun 4 batches" in outcome.err.replace(
        "rank 1 has begun 4 batches, rank 0 has begun 5 batches",
        "rank 0 has begun 5 batches, rank 1 has begun 4 batches",
    )
    if last == "pass":
        assert "rank 1 failed first" in outcome.err
        assert "rank 1 ended with code 0 after 4 batches" in outcome.err


SKIPPED = """
import os, torch, fleetx as fleet
fleet.init(is_collective=True)
model = fleet.distributed_model(torch.nn.Linear(8, 2))
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for number in range(int(os.environ["BATCHES"])):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).sum().backward()
    if number == 10 and os.environ["RANK"] == "1":
        continue
    optimizer.step()
"""


def test_an_update_that_one_rank_left_out_is_told_at_the_end(launcher: Launcher) -> None:
    """All exchanges have found partners by then, and the weights differ."""
    outcome = run(launcher, SKIPPED, "--stuck_after", soon(), BATCHES="14")
    assert outcome.code == 0, outcome.err
    assert "different numbers of updates: 13 on rank 1, 14 on rank 0" in outcome.err


@pytest.mark.rare
def test_an_update_that_one_rank_left_out_is_named_when_numbers_are_compared(
    launcher: Launcher,
) -> None:
    outcome = run(launcher, SKIPPED, "--stuck_after", soon(), BATCHES="100")
    assert outcome.code == 124, outcome.err
    assert "ranks 0, 1 wait for each other" in outcome.err
    told = "rank 0 has called the model 16 times and ended 15 batches, rank 1 has called the model"
    assert f"{told} 17 times and ended 15 batches" in outcome.err


@pytest.mark.rare
def test_a_plain_script_of_torch_is_told_by_its_lines(launcher: Launcher) -> None:
    script = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
for step in range(20):
    if step == 15 and os.environ["RANK"] == "2":
        time.sleep(300)
    dist.all_reduce(x)
"""
    outcome = run(launcher, script, "--stuck_after", soon(), workers=3)
    assert outcome.code == 124, outcome.err
    nap, reduce = line_of(script, "sleep"), line_of(script, "all_reduce")
    assert f"rank 2 has been at train.py:{nap} for" in outcome.err
    assert f"ranks 0, 1 wait for it in the all-reduce at train.py:{reduce}" in outcome.err
    assert "stack of ranks 0, 1, innermost" in outcome.err, "equal stacks are told once"


def test_collectives_in_a_different_order_are_named(launcher: Launcher) -> None:
    script = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(3)
for step in range(12):
    dist.all_reduce(x)
if os.environ["RANK"] == "0":
    dist.all_reduce(torch.ones(5))
    dist.broadcast(torch.ones(7), 0)
else:
    dist.broadcast(torch.ones(7), 0)
    dist.all_reduce(torch.ones(5))
time.sleep(300)
"""
    outcome = run(launcher, script, "--stuck_after", soon())
    assert outcome.code != 0
    assert "ranks 0, 1 are out of order: as number 13" in outcome.err, outcome.err
    assert "rank 0 made an all-reduce of [[5]]" in outcome.err
    assert "rank 1 made a broadcast of [[7]]" in outcome.err


@pytest.mark.real_processes
def test_a_crash_in_native_code_shows_its_stack(launcher: Launcher) -> None:
    script = """
import ctypes, threading, time
for _ in range(30):
    threading.Thread(target=time.sleep, args=(300,), daemon=True).start()
def read_nowhere():
    ctypes.string_at(0)
read_nowhere()
"""
    outcome = run(launcher, script, workers=1)
    assert outcome.code == 128 + signal.SIGSEGV
    assert "Fatal Python error: Segmentation fault" in outcome.err
    assert f"line {line_of(script, 'string_at')} in read_nowhere" in outcome.err


@pytest.mark.rare
@pytest.mark.parametrize("how", ["native", "stopped"])
def test_a_rank_that_cannot_say_anything_is_named(launcher: Launcher, how: str) -> None:
    wait = {
        # A function that is called with the interpreter's lock held.
        "native": "ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)",
        "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    }[how]
    script = f"""{PLAIN}
import ctypes, signal
def trouble(number):
    if rank == 1 and number == 3:
        {wait}
train(5)
"""
    outcome = run(launcher, script, "--stuck_after", soon())
    assert outcome.code == 124, outcome.err
    assert "rank 1 has given no sign for" in outcome.err
    if how == "native":
        assert "native code does not let go of the interpreter" in outcome.err
        assert "in trouble" in outcome.err
    else:
        assert "it is stopped" in outcome.err


def test_two_machines_name_the_rank_on_both_consoles(launcher: Launcher) -> None:
    script = launcher.script(f"""{PLAIN}
def trouble(number):
    if rank == 1 and number == 3:
        time.sleep(300)
train(5)
""")
    port = free_ports(4)[1]
    jobs = [
        launcher.start(
            "--nnodes=2",
            f"--master=127.0.0.1:{port}",
            f"--rank={node}",
            f"--log_dir=log{node}",
            f"--stuck_after={soon()}",
            script,
        )
        for node in range(2)
    ]
    for outcome in [launcher.finish(job) for job in jobs]:
        assert outcome.code == 124, outcome.err
        assert "rank 1 has been reading data at train.py:" in outcome.err
        assert "rank 0 waits for it in the all-reduce of data_parallel" in outcome.err
        assert "stack of rank 0, innermost" in outcome.err


@pytest.mark.rare
def test_nobody_is_named_while_one_rank_evaluates_alone(launcher: Launcher) -> None:
    script = f"""{PLAIN}
trouble = lambda number: None
model = train(3)
began = time.time()
while rank == 0 and time.time() < began + 10:
    with torch.no_grad():
        model(torch.randn(4, 8))
    time.sleep(0.1)
fleet.barrier_worker()
"""
    outcome = run(launcher, script, FLEETX_STUCK_WARNING="6")
    assert outcome.code == 0, outcome.err
    assert "wait" not in outcome.err


PIPELINE = """
import os, time, torch, fleetx as fleet
rank, how = int(os.environ["RANK"]), os.environ["HOW"]
strategy = fleet.DistributedStrategy()
strategy.pipeline = True
strategy.pipeline_configs = {"accumulate_steps": 2}
fleet.init(is_collective=True, strategy=strategy)
layers = [torch.nn.Linear(8, 8) for _ in range(3)]
model = fleet.distributed_model(
    torch.nn.Sequential(*layers, torch.nn.Linear(8, 2)), criterion=torch.nn.functional.mse_loss
)
step = 0
def hang(module, inputs):
    if how == "sleep" and rank == 1 and step == 3:
        time.sleep(300)
for module in model.modules():
    if isinstance(module, torch.nn.Linear):
        module.register_forward_pre_hook(hang)
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(6):
    samples = 8 if how == "shapes" and rank == 1 and step == 3 else 4
    model.train_batch((torch.randn(samples, 8), torch.randn(samples, 2)))
"""


def test_other_shapes_on_one_rank_of_a_pipeline_are_named(launcher: Launcher) -> None:
    outcome = run(launcher, PIPELINE, "--stuck_after", soon(), HOW="shapes")
    assert outcome.code == 124, outcome.err
    assert "ranks 0, 1 wait for each other" in outcome.err
    assert "They differ in the shapes of their batches" in outcome.err
    assert "((8, 8), torch.float32)" in outcome.err


@pytest.mark.rare
def test_a_stage_that_stands_still_is_named(launcher: Launcher) -> None:
    outcome = run(launcher, PIPELINE, "--stuck_after", soon(), HOW="sleep")
    assert outcome.code == 124, outcome.err
    line = line_of(PIPELINE, "time.sleep")
    assert f"rank 1 has been in forward and backward at train.py:{line} for" in outcome.err
    assert "rank 0 waits for it in the transfer of pipeline" in outcome.err


@by_turns(1, of=4)
def test_a_model_of_others_that_stands_still_in_a_layer_is_named(launcher: Launcher) -> None:
    script = """
import os, time, torch, fleetx as fleet
from tests.libraries import transformers
strategy = fleet.DistributedStrategy()
strategy.sharding = True
strategy.sharding_configs = {"stage": 3}
fleet.init(is_collective=True, strategy=strategy)
config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=64, n_positions=16)
model = fleet.distributed_model(transformers.GPT2LMHeadModel(config))
optimizer = fleet.distributed_optimizer(torch.optim.AdamW(model.parameters(), lr=1e-3))
step = 0
def hang(module, inputs):
    if os.environ["RANK"] == "1" and step == 3:
        time.sleep(300)
model.transformer.h[1].register_forward_pre_hook(hang)
for step in range(5):
    ids = torch.randint(0, 64, (2, 8))
    optimizer.minimize(model(input_ids=ids, labels=ids).loss)
"""
    outcome = run(launcher, script, "--stuck_after", soon(), PYTHONPATH=str(ROOT))
    assert outcome.code == 124, outcome.err
    assert f"rank 1 has been in forward at train.py:{line_of(script, 'sleep')} for" in outcome.err
    assert "(step 4); rank 0 waits for it in the all-gather of sharding" in outcome.err
    assert "modeling_gpt2.py" in outcome.err


@pytest.mark.rare
def test_a_pipeline_without_worker_0_that_mixes_batches_up_is_named_on_the_console(
    launcher: Launcher,
) -> None:
    script = """
import os, torch, fleetx as fleet
strategy = fleet.DistributedStrategy()
strategy.pipeline = True
strategy.pipeline_configs = {"accumulate_steps": 2, "split": ["1"]}
strategy.hybrid_configs = {"pp_degree": 2, "dp_degree": 2}
fleet.init(is_collective=True, strategy=strategy)
model = fleet.distributed_model(
    torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)),
    criterion=torch.nn.functional.mse_loss,
)
optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.1))
torch.manual_seed(0)
batches = [(torch.randn(4, 8), torch.randn(4, 2)) for _ in range(6)]
if os.environ["RANK"] == "3":
    batches = [*batches[1:], batches[0]]
for batch in batches:
    model.train_batch(batch)
"""
    outcome = run(launcher, script, workers=4)
    assert outcome.code == 0, outcome.err
    told = "rank 1 says: at update 2 worker 1 and worker 3 of one pipeline were given different"
    assert outcome.err.count(told) == 1, outcome.err


def test_a_failure_tells_what_the_others_were_waiting_for(launcher: Launcher) -> None:
    """One rank fails while another waits for it, and a third has not come so far."""
    script = f"""{PLAIN}
import json

def waits(other):
    file = os.environ["FLEETX_ACTIVITY"].replace("workerlog.1", f"workerlog.{{other}}")
    told = json.load(open(file))
    return any(group["open"] for group in told.get("groups", {{}}).values())

def trouble(number):
    if number == 3 and rank == 2:
        while True: time.sleep(0.02)  # reading
    if number == 3 and rank == 1:
        while not waits(0): time.sleep(0.02)
        raise ValueError("boom")
train(5)
"""
    outcome = run(launcher, script, workers=3, FLEETX_STUCK_WARNING="1")
    assert outcome.code == 1
    assert "rank 1 failed first (exit code 1)" in outcome.err
    assert "ValueError: boom" in outcome.err
    line = line_of(script, "# reading")
    told = next(text for text in outcome.err.splitlines() if text.startswith("meanwhile "))
    assert "rank 0 waited in the all-reduce of data_parallel (step 4)" in told
    assert f"rank 2 was reading data at train.py:{line} (step 3)" in told
