"""Wide and deep in Paddle, for ``ctr.py --paddle``: the same network, ids and batches, with SGD.

It is written in two forms: with an input for each of the 26 slots, as Paddle's own examples have
it, and with one input for all of them, which is the fastest that we found.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import paddle  # type: ignore[import-not-found, unused-ignore]
from paddle.distributed import fleet  # type: ignore[import-not-found, unused-ignore]

sys.path.insert(0, str(Path(__file__).parent.parent))  # examples and benchmarks are not installed
from benchmarks.unlaunched import seconds
from examples.ctr.clicks import DENSE, SLOTS, examples

ROWS, DIM, HIDDEN, RATE = 26_000, 8, 64, 0.05
SLOTTED, WHOLE = "slotted", "whole"


def inputs(form: str, mode: str) -> list[Any]:
    """What is fed for ids."""
    if form == SLOTTED:
        return [paddle.static.data(f"C{slot}", [None, 1], "int64") for slot in range(SLOTS)]
    # Its distributed lookup wants one id in a row.
    width = SLOTS if mode == "geo" else 1
    return [paddle.static.data("ids", [None, width], "int64")]


def rows(ids: list[Any], mode: str, name: str, dim: int, first: Any) -> Any:
    """All rows of an example, one behind the other."""
    named = paddle.ParamAttr(name=name, initializer=first)
    nn: Any = paddle.static.nn
    if mode == "geo":
        found = [nn.embedding(each, [ROWS, dim], is_sparse=True, param_attr=named) for each in ids]
    else:
        found = [nn.sparse_embedding(each, [ROWS, dim], param_attr=named) for each in ids]
    if len(found) == 1:
        return paddle.reshape(found[0], [-1, SLOTS * dim])
    return paddle.concat([paddle.reshape(each, [-1, dim]) for each in found], 1)


def loss(ids: list[Any], mode: str) -> Any:
    """The network."""
    dense = paddle.static.data("dense", [None, DENSE], "float32")
    click = paddle.static.data("click", [None, 1], "float32")
    wide = rows(ids, mode, "wide", 1, paddle.nn.initializer.Constant(0.0))
    deep = rows(ids, mode, "deep", DIM, paddle.nn.initializer.Uniform(-0.05, 0.05))
    inner = paddle.concat([dense, deep], 1)
    for _ in range(2):
        inner = paddle.static.nn.fc(inner, HIDDEN, activation="relu")
    logit = paddle.static.nn.fc(inner, 1) + paddle.sum(wide, axis=1, keepdim=True)
    cost = paddle.nn.functional.binary_cross_entropy_with_logits(logit, click)
    return paddle.mean(cost)


def feeds(form: str, mode: str, size: int) -> list[dict[str, Any]]:
    """Twenty batches of clicks."""
    dense, ids, truth = examples(20 * size, fleet.worker_index())
    clicks = np.random.default_rng(0).random(len(truth)) < truth
    ids = ids // 1000 * SLOTS + ids % 1000  # numbered, for tables that have a size
    found = []
    for begin in range(0, 20 * size, size):
        cut = slice(begin, begin + size)
        fed = {"dense": dense[cut].astype("float32"), "click": clicks[cut, None].astype("float32")}
        if form == SLOTTED:
            fed |= {f"C{k}": np.ascontiguousarray(ids[cut, k : k + 1]) for k in range(SLOTS)}
        else:
            fed["ids"] = ids[cut] if mode == "geo" else ids[cut].reshape(-1, 1)
        found.append(fed)
    return found


def main() -> None:
    """A process of the job; workers print what they reached."""
    mode, form, steps, size, folder = sys.argv[1:]
    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    cost = loss(inputs(form, mode), mode)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 10 if mode == "geo" else 0}
    vars(fleet)["DistributedStrategy"].__repr__ = object.__repr__  # its own fails here
    fleet.distributed_optimizer(paddle.optimizer.SGD(RATE), strategy).minimize(cost)
    if fleet.is_server():
        fleet.init_server()
        (Path(folder) / f"server.{os.getpid()}").touch()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    data, program = feeds(form, mode, int(size)), paddle.static.default_main_program()
    counted = list(Path(folder).glob("server.*")) if fleet.is_first_worker() else []
    servers = [int(path.suffix[1:]) for path in counted]

    def train(count: int) -> tuple[float, float]:
        began, spent = time.perf_counter(), time.process_time() + sum(map(seconds, servers))
        for number in range(count):
            exe.run(program, feed=data[number % len(data)], fetch_list=[cost])
        used = time.process_time() + sum(map(seconds, servers)) - spent
        return count / (time.perf_counter() - began), used / count * 1e3

    train(len(data))
    rate, used = train(int(steps))
    print(f"RATE {rate * int(size)} {used}", flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
