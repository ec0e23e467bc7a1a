"""The life of a job with a static program, and the same with a plain model: they learn the same."""

import sys

import numpy as np
import torch
from torch import nn

import fleetx as fleet
from fleetx import static
from fleetx.nn import ShowClickEntry, SparseEmbedding, Uniform

WORDS, DIM, STEPS = 50, 4, 6

fleet.init()
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()

chance = np.random.default_rng(fleet.worker_index())
ids = chance.integers(0, WORDS, (STEPS, 8, 3)) * 10**15
targets = chance.standard_normal((STEPS, 8, 1)).astype(np.float32)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = SparseEmbedding(
            DIM, name="plain", initializer=Uniform(-0.1, 0.1), entry=ShowClickEntry()
        )
        self.head = nn.Linear(3 * DIM, 1)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.words(words, click=torch.ones_like(words)).flatten(1))


def plain() -> tuple[list[float], np.ndarray]:
    torch.manual_seed(7)
    model = fleet.distributed_model(Net())
    optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    fleet.init_worker()
    losses = []
    for inputs, wanted in zip(ids, targets, strict=True):
        loss = ((model(torch.from_numpy(inputs)) - torch.from_numpy(wanted)) ** 2).mean()
        optimizer.minimize(loss)
        losses.append(loss.item())
    model.eval()
    with torch.no_grad():
        return losses, model(torch.from_numpy(ids[0])).numpy()


def program() -> tuple[list[float], np.ndarray]:
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        words = static.data("words", [None, 3], "int64")
        wanted = static.data("wanted", [None, 1], "float32")
        rows = static.nn.sparse_embedding(
            words, (10, DIM), param_attr=Uniform(-0.1, 0.1), name="recorded"
        )
        found = static.nn.fc(rows.flatten(1), 1, name="head")
        loss = ((found - wanted) ** 2).mean()
        test = main.clone(for_test=True)
        optimizer = fleet.distributed_optimizer(static.Optimizer(torch.optim.Adagrad, lr=0.1))
        optimizer.minimize(loss, startup)
    exe = static.Executor()
    startup.random_seed = 7
    exe.run(startup)
    # The table has no size: ids are far above the ten rows that were asked for.
    losses = [
        float(exe.run(main, {"words": i, "wanted": t}, [loss])[0])
        for i, t in zip(ids, targets, strict=True)
    ]
    (after,) = exe.run(test, {"words": ids[0], "wanted": targets[0]}, [found])
    return losses, after


first, second = plain(), program()
np.testing.assert_allclose(first[0], second[0], rtol=1e-6, atol=1e-6)
np.testing.assert_allclose(first[1], second[1], rtol=1e-6, atol=1e-6)
assert first[0][-1] != first[0][0]
fleet.settle_workers()
tables = fleet.server_report()[0]["tables"]
assert tables["recorded"]["rows"] == tables["plain"]["rows"] > 10
assert tables["recorded"]["updates"] == tables["plain"]["updates"] == STEPS
fleet.save_persistables("model")
fleet.save_inference_model("serve")
np.savez(f"outputs-{fleet.worker_index()}.npz", ids=ids[0], found=first[1])
fleet.stop_worker()
print("equal", flush=True)
