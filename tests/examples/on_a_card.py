"""All that gives or takes tensors of a batch, as a worker on a card; run by tests/card.py."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fleetx as fleet
from fleetx import roles, static
from fleetx.data.images import View, train_loader
from fleetx.data.making.layouts import Recipe, make
from fleetx.data.tokens.loaders import pairs_loader
from fleetx.metrics import AUC, MAE, RMSE, Accuracy
from fleetx.nn import SparseEmbedding
from fleetx.ps.tables.id_batch import IdBatch

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.card import NAME, place


def places(batch: Any) -> set[str]:
    """Of all tensors in there."""
    if isinstance(batch, Tensor):
        return {place(batch)}
    values = batch.values() if isinstance(batch, dict) else batch
    return set().union(*map(places, values)) if len(values) else set()


def data_sets() -> None:
    Path("part").write_text("1 7 2 0.5 1.5\n1 8 2 2.5 3.5\n1 9 2 4.5 5.5\n")
    for kind in (fleet.QueueDataset, fleet.InMemoryDataset):
        data = kind()
        data.init(batch_size=2, use_var=["ids", fleet.Slot("dense", "float32")])
        data.set_filelist(["part"])
        if isinstance(data, fleet.InMemoryDataset):
            data.load_into_memory()
            data.global_shuffle(fleet)
        batches = list(data)
        assert [len(batch["ids"].offsets) for batch in batches] == [2, 1]
        assert places(batches) == {NAME}
        assert batches[0]["dense"].dense().tolist() != []
        again = fleet.data.slots.Ragged(*batches[0]["dense"])  # as somebody makes it by hand
        assert again.dense().shape == (2, 2)


def loaders() -> None:
    plain = DataLoader(TensorDataset(torch.arange(5), torch.rand(5)), batch_size=2)
    assert places(list(fleet.distributed_loader(plain))) == {NAME}
    make(Path("flowers"), Recipe(classes=2, train_images=2, val_images=1))
    view = View(image_shape=(3, 32, 32), resize_short_size=36)
    assert places(list(train_loader("flowers", 2, view, num_workers=0))) == {NAME}
    Path("text").write_text("1 2\t3 4\n5 6\t7 8\n")
    pairs = pairs_loader(Path("text"), vocab_size=9, batch_size=2, in_tokens=False)
    assert places(list(pairs)) == {NAME}


def metrics() -> None:
    """Scores of the model are on the card; labels may be anywhere."""
    scores, labels = torch.rand(4, 3), torch.tensor([0, 1, 2, 0])
    for there in (labels, labels.to(fleet.device()), labels.numpy(), labels.tolist()):
        for metric in (Accuracy(), Accuracy(topk=2)):
            metric.update(scores.to(fleet.device()), there)
            assert metric.counts[1] == 4
        area: AUC = AUC()
        area.update(scores[:, 0].to(fleet.device()), np.asarray([0, 1, 1, 0]))
        for error in (MAE(), RMSE()):
            error.update(scores[:, 0].to(fleet.device()), there)
    assert fleet.util.all_reduce(scores.to(fleet.device())).shape == (4, 3)


class Rows:
    """What servers give."""

    exact_prefetch = True

    def sort_ids(self, ids: Any) -> IdBatch:
        return IdBatch.of(ids, 1)

    def look_up(self, table: Any, batch: IdBatch, *_: Any, **__: Any) -> Any:
        return np.repeat(batch.ids[:, None].astype(np.float32), table.dim, 1)

    def fetch_ahead(self, *_: Any) -> Any:
        raise NotImplementedError

    def next_versions(self, table: Any) -> list[int]:
        raise NotImplementedError

    def outdated(self, table: Any, versions: list[int]) -> bool:
        raise NotImplementedError

    def refreshed(self, table: Any, batch: IdBatch, rows: Any) -> Any:
        return rows


def rows() -> None:
    """Rows are where the layer is, wherever their ids are."""
    for pooling, shape in ((None, (2, 2, 3)), ("sum", (2, 3)), ("mean", (2, 3))):
        layer = SparseEmbedding(3, name="t", pooling=pooling, padding_idx=0).to(fleet.device())
        layer.row_source = Rows()
        for ids in (torch.tensor([[7, 0], [9, 7]]), torch.tensor([[1, 2], [3, 4]])):
            for where in ("cpu", fleet.device()):
                found = layer(ids.to(where))
                assert found.shape == shape
                assert place(found) == NAME
                found.sum().backward()
                assert layer.anchor.grad is not None
                assert place(layer.anchor.grad) == NAME
                layer.take(1)


def programs() -> None:
    """What is fed lands on the card, from files and from a loader."""
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        ids, dense = static.data("ids", [None, 1], "int64"), static.data("dense", [None, 2])
        cost = (static.nn.embedding(ids, (10, 2)).squeeze(1) * dense).sum(1).mean()
        static.Optimizer(torch.optim.SGD, lr=0.1).minimize(cost)
    exe = static.Executor()
    exe.run(startup)
    data = fleet.QueueDataset()
    data.init(batch_size=2, use_var=[ids, dense])
    data.set_filelist(["part"])
    assert exe.train_from_dataset(main, data, fetch_list=[cost], print_period=1) == 2
    assert exe.infer_from_dataset(main, data, fetch_list=[cost]) == 2
    loader = static.DataLoader.from_generator(feed_list=[ids, dense], capacity=2)
    one = (np.ones((2, 1), "int64"), np.ones((2, 2), "float32"))
    loader.set_batch_generator(lambda: iter([one]))
    for feed in loader():
        exe.run(main, feed=feed, fetch_list=[cost])


STRATEGIES: dict[str, dict[str, Any]] = {
    "amp": {"amp_configs": {"init_loss_scaling": 2.0**10}},
    "recompute": {"recompute_configs": {"checkpoints": ["2"]}},
    "gradient_merge": {"gradient_merge_configs": {"k_steps": 2}},
    "clip": {},
    "lars": {},
}
"""Those that act in one worker; pipelines ask for NCCL, and sharding for streams of the device."""


def strategies() -> None:
    """Parameters, state and loss scales stay on the card."""
    for name, configs in STRATEGIES.items():
        strategy = fleet.DistributedStrategy()
        setattr(strategy, name, True)
        for block, values in configs.items():
            setattr(strategy, block, values)
        roles.stop()
        fleet.init(is_collective=True, strategy=strategy)
        model: Any = fleet.distributed_model(
            nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8)),
            criterion=nn.functional.cross_entropy,
        )
        rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = fleet.distributed_optimizer(rule)
        for _ in range(2):
            inputs, targets = torch.randn(4, 6), torch.randint(0, 8, (4,))
            model.train_batch((inputs.to(fleet.device()), targets.to(fleet.device())))
        optimizer.load_state_dict(optimizer.state_dict())
        assert {place(tensor) for tensor in model.parameters()} == {NAME}, name


def main() -> None:
    fleet.init(is_collective=True)
    assert str(fleet.device()) == "card:0"
    assert place(nn.Linear(2, 2).to(fleet.device()).weight) == NAME
    for check in (data_sets, loaders, metrics, rows, programs, strategies):
        check()
        print(f"{check.__name__} is where it should be", flush=True)


if __name__ == "__main__":
    main()
