"""A model of torchfm, whose tables are on servers; worker 0 writes what it predicts at the end."""

import sys
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fleetx as fleet
from fleetx.nn import Constant, SparseEmbedding

FIELDS = (50, 40, 30)
STEPS, BATCH, FIRST = 6, 16, 0.05


def make(name: str) -> nn.Module:
    """One of two models, each of which has two tables of its own."""
    from torchfm.model.dfm import DeepFactorizationMachineModel
    from torchfm.model.xdfm import ExtremeDeepFactorizationMachineModel

    torch.manual_seed(0)
    if name == "deepfm":
        return DeepFactorizationMachineModel(FIELDS, 8, (16,), 0.0)
    return ExtremeDeepFactorizationMachineModel(FIELDS, 8, (16,), 0.0, (8, 8))


def tables(model: nn.Module) -> dict[str, int]:
    """The paths of its embeddings, and their widths."""
    named = model.named_modules()
    return {path: each.embedding_dim for path, each in named if isinstance(each, nn.Embedding)}


def moved_to_servers(model: nn.Module) -> nn.Module:
    """The same model, with tables on servers in place of its embeddings."""
    for path, width in tables(model).items():
        name = path.replace(".", "_")
        model.set_submodule(path, SparseEmbedding(width, name=name, initializer=Constant(FIRST)))
    return model


def fixed(model: nn.Module) -> nn.Module:
    """With statistics that stay: those of a batch are others for each worker's share."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eval()
    return model


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    ids = [torch.randint(0, size, (BATCH,), generator=generator) for size in FIELDS]
    return torch.stack(ids, 1), torch.rand(BATCH, generator=generator).round()


def train(model: Any, optimizer: Any, share: slice) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids, clicks = batch(generator)
        F.binary_cross_entropy(model(ids[share]), clicks[share]).backward()
        optimizer.step()
        optimizer.zero_grad()


def asked() -> Tensor:
    return batch(torch.Generator().manual_seed(2))[0]


def main() -> None:
    name, out = sys.argv[1:]
    fleet.init()
    model = fleet.distributed_model(fixed(moved_to_servers(make(name))))
    optimizer = fleet.distributed_optimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    if fleet.is_server():
        fleet.init_server()
        fleet.run_server()
        return
    fleet.init_worker()
    train(model, optimizer, slice(fleet.worker_index(), None, fleet.worker_num()))
    fleet.barrier_worker()
    with torch.no_grad():
        told = model(asked())
    if fleet.worker_index() == 0:
        torch.save(told, out)
    fleet.stop_worker()


if __name__ == "__main__":
    main()
