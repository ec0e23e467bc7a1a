"""Wide and deep in Paddle, for ``ctr.py --paddle``: the same network, ids and batches, with Adam.

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
from benchmarks.auc import auc
from benchmarks.unlaunched import seconds
from examples.ctr.clicks import DENSE, SLOTS, labelled

ROWS, DIM, HIDDEN, RATE, WARM = 26_000, 8, 64, 0.01, 20
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


def network(ids: list[Any], mode: str) -> tuple[Any, Any]:
    """The loss, and the logit of each example."""
    dense = paddle.static.data("dense", [None, DENSE], "float32")
    click = paddle.static.data("click", [None, 1], "float32")
    wide = rows(ids, mode, "wide", 1, paddle.nn.initializer.Constant(0.0))
    deep = rows(ids, mode, "deep", DIM, paddle.nn.initializer.Uniform(-0.05, 0.05))
    inner = paddle.concat([dense, deep], 1)
    for _ in range(2):
        inner = paddle.static.nn.fc(inner, HIDDEN, activation="relu")
    logit = paddle.static.nn.fc(inner, 1) + paddle.sum(wide, axis=1, keepdim=True)
    cost = paddle.nn.functional.binary_cross_entropy_with_logits(logit, click)
    return paddle.mean(cost), logit


def feeds(form: str, mode: str, count: int, size: int) -> list[dict[str, Any]]:
    """Batches of clicks."""
    dense, ids, clicks = labelled(count * size, fleet.worker_index())
    ids = ids // 1000 * SLOTS + ids % 1000  # numbered, for tables that have a size
    found = []
    for begin in range(0, count * size, size):
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
    cost, logit = network(inputs(form, mode), mode)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"k_steps": 10 if mode == "geo" else 0}
    vars(fleet)["DistributedStrategy"].__repr__ = object.__repr__  # its own fails here
    fleet.distributed_optimizer(paddle.optimizer.Adam(RATE), strategy).minimize(cost)
    if fleet.is_server():
        fleet.init_server()
        (Path(folder) / f"server.{os.getpid()}").touch()
        fleet.run_server()
        return
    exe = paddle.static.Executor(paddle.CPUPlace())
    exe.run(paddle.static.default_startup_program())
    fleet.init_worker()
    program = paddle.static.default_main_program()
    data = feeds(form, mode, WARM + int(steps), int(size))
    scores: list[Any] = []
    counted = list(Path(folder).glob("server.*")) if fleet.is_first_worker() else []
    servers = [int(path.suffix[1:]) for path in counted]

    def train(fed: list[dict[str, Any]]) -> tuple[float, float]:
        began, spent = time.perf_counter(), time.process_time() + sum(map(seconds, servers))
        for each in fed:
            scores.append(exe.run(program, feed=each, fetch_list=[cost, logit])[1])
        used = time.process_time() + sum(map(seconds, servers)) - spent
        return len(fed) / (time.perf_counter() - began), used / len(fed) * 1e3

    train(data[:WARM])
    rate, used = train(data[WARM:])
    late = len(data) // 2
    clicks = np.concatenate([each["click"] for each in data[late:]]).reshape(-1) > 0
    reached = auc(np.concatenate(scores[late:]).reshape(-1), clicks)
    print(f"RATE {rate * int(size)} {used} {reached}", flush=True)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
