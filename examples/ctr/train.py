"""Click-through rates with parameter servers.

fleetrun --server_num 2 --worker_num 2 examples/ctr/train.py --mode async
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import fleetx as fleet
from fleetx.data.slots import Ragged
from fleetx.metrics import AUC

if TYPE_CHECKING:
    from examples.ctr.clicks import SLOTS, examples, write
    from examples.ctr.model import WideAndDeep
else:
    from clicks import SLOTS, examples, write
    from model import WideAndDeep

Batch = dict[str, Ragged]
MODES = ("sync", "async", "half", "geo")
"""How workers exchange."""


def arguments() -> argparse.Namespace:
    """What may be said on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", choices=MODES, default="async")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--lines", type=int, default=20_000, help="records in a file")
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--data", type=Path, default=Path("output/ctr"))
    parser.add_argument("--save", type=Path, help="where to save the tables")
    parser.add_argument(
        "--serve", type=Path, help="where to save the model after the first epoch, for serve.py"
    )
    return parser.parse_args()


def tensors(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Labels, dense features and ids."""
    ids = torch.cat([batch[f"slot{i}"].dense() for i in range(SLOTS)], 1)
    return batch["click"].dense().squeeze(1).float(), batch["dense"].dense(), ids


def records(given: argparse.Namespace) -> fleet.InMemoryDataset:
    """This worker's share of the files, dealt out anew between all workers."""
    files = write(given.data, given.files, given.lines)
    data = fleet.InMemoryDataset()
    slots = [f"slot{i}" for i in range(SLOTS)]
    wanted: list[str | fleet.Slot] = ["click", fleet.Slot("dense", "float32"), *slots]
    data.init(batch_size=given.batch_size, use_var=wanted)
    data.set_filelist(fleet.util.get_file_shard(files))
    data.load_into_memory()
    return data


@torch.no_grad()
def evaluate(model: WideAndDeep) -> tuple[float, float]:
    """The AUC on fresh clicks, and that of the true probabilities."""
    found, best = AUC(), AUC()
    model.eval()
    dense, ids, truth = examples(20_000, 10**7 + fleet.worker_index())
    clicks = torch.bernoulli(torch.from_numpy(truth), generator=torch.Generator().manual_seed(1))
    logits = model(torch.from_numpy(dense).float().to(fleet.device()), torch.from_numpy(ids))
    found.update(torch.sigmoid(logits), clicks)
    best.update(torch.from_numpy(truth), clicks)
    model.train()
    return found.compute(), best.compute()


def main() -> None:
    """Train, and compare with the best there is."""
    given = arguments()
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = given.mode != "sync"
    if given.mode != "sync":
        steps = 8 if given.mode == "geo" else 0
        strategy.a_sync_configs = {"k_steps": steps, "half_async": given.mode == "half"}
    fleet.init(strategy=strategy)
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    torch.manual_seed(0)
    model = fleet.distributed_model(WideAndDeep())
    optimizer = fleet.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=given.lr))
    fleet.init_worker()
    data = records(given)

    def step(batch: Batch) -> float:
        clicks, dense, ids = tensors(batch)
        loss = binary_cross_entropy_with_logits(model(dense, ids), clicks)
        optimizer.minimize(loss)
        return loss.item()

    for epoch in range(given.epochs):
        data.global_shuffle(fleet)
        fleet.train_from_dataset(data, step, ahead=lambda batch: model.prefetch(tensors(batch)[2]))
        found, best = evaluate(model)
        if fleet.is_first_worker():
            print(f"epoch {epoch + 1}/{given.epochs}: AUC {found:.4f} of {best:.4f}", flush=True)
        if given.serve is not None and epoch == 0:
            fleet.save_inference_model(str(given.serve))
    if given.save is not None:
        fleet.save_persistables(str(given.save))
    fleet.stop_worker()


if __name__ == "__main__":
    main()
