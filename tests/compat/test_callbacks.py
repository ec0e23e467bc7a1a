"""``paddle.Model`` and what is called while it trains; processes that a script spawns."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def rows(paddle: Any, count: int) -> Any:
    class Rows(paddle.io.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return count

        def __getitem__(self, at: int) -> Any:
            return np.full(2, at, "float32"), np.array([at % 2])

    return Rows()


def model(paddle: Any, rate: Any = 0.1) -> Any:
    made = paddle.Model(paddle.nn.Linear(2, 2))
    optimizer = paddle.optimizer.SGD(rate, parameters=made.parameters())
    made.prepare(optimizer, paddle.nn.CrossEntropyLoss(), paddle.metric.Accuracy())
    return made


def test_moments_come_in_the_order_of_paddle(tmp_path: Path) -> None:
    import paddle

    seen: list[Any] = []

    class Seen(paddle.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            seen.append(("begin", self.params["steps"], self.params["metrics"]))

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            seen.append(("epoch", epoch, sorted(logs)))

        def on_train_batch_end(self, step: int, logs: Any = None) -> None:
            seen.append(("batch", step, logs["batch_size"]))

        def on_eval_end(self, logs: Any = None) -> None:
            seen.append(("eval", sorted(logs)))

        def on_train_end(self, logs: Any = None) -> None:
            seen.append("end")

    rate = paddle.optimizer.lr.StepDecay(0.5, step_size=1, gamma=0.5)
    made, data = model(paddle, rate), rows(paddle, 5)
    options = {"epochs": 1, "batch_size": 2, "drop_last": True, "verbose": 0}
    made.fit(data, data, callbacks=[Seen()], save_dir=str(tmp_path), **options)
    logs = ["acc", "batch_size", "loss", "step"]
    assert seen == [
        ("begin", 2, ["loss", "acc"]),
        ("batch", 0, 2),
        ("batch", 1, 2),
        ("epoch", 0, logs),
        ("eval", ["acc", "loss"]),
        "end",
    ]
    assert rate() == pytest.approx(0.125)  # a schedule moves with every batch
    assert {path.name for path in tmp_path.iterdir()} >= {"0.pdparams", "final.pdopt"}


def test_training_ends_early_and_schedules_may_move_by_epochs() -> None:
    import paddle

    callbacks = paddle.callbacks
    rate = paddle.optimizer.lr.StepDecay(0.0, step_size=1, gamma=0.5)
    made, data = model(paddle, rate), rows(paddle, 4)
    watch = callbacks.EarlyStopping("loss", patience=2, verbose=0, save_best_model=False)
    moved = callbacks.LRScheduler(by_step=False, by_epoch=True)
    made.fit(data, data, batch_size=2, epochs=9, verbose=0, callbacks=[watch, moved])
    assert (watch.wait_epoch, rate.last_epoch) == (2, 3)  # nothing learned: one best, two waits
    with pytest.raises(ValueError, match="watches what a test does not give"):
        callbacks.EarlyStopping("auc").on_eval_end({"loss": [1.0]})


@pytest.mark.rare
def test_spawned_processes_find_paddle(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import multiprocessing\nimport paddle\n"
        "def work(queue):\n    queue.put(paddle.to_tensor([2.0]).numpy().tolist())\n"
        "if __name__ == '__main__':\n    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n    child = context.Process(target=work, args=(queue,))\n"
        "    child.start()\n    print(queue.get())\n    child.join()\n"
    )
    command = [sys.executable, "-m", "fleetx.compat", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0]", done.stderr
