"""Rows in fewer bytes: what the click example loses by it, and what it saves.

    python benchmarks/ps_dtypes.py --examples 160000

The model, the clicks and the optimizer are those of ``examples/ctr``; one worker trains it in order
with a server in the same process, once for each dtype of both tables, on the same batches. AUC is
that of 50,000 fresh examples, which are the same for all. Bytes are those of a row of the deep
table (8 numbers and Adagrad's state), without and with its share of the index.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

sys.path.insert(0, str(Path(__file__).parent.parent))  # examples and tests are not installed
from examples.ctr.clicks import examples
from examples.ctr.model import WideAndDeep
from fleetx.metrics import AUC
from fleetx.ps.tables.sparse_spec import DTYPES
from tests.ps.team import carried, team

BATCH, FRESH = 512, 50_000


def clicks(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Dense features, ids and clicks."""
    dense, ids, truth = examples(count, seed)
    drawn = torch.bernoulli(torch.from_numpy(truth), generator=torch.Generator().manual_seed(seed))
    return torch.from_numpy(dense).float(), torch.from_numpy(ids), drawn.float()


def trained(dtype: str, data: tuple[Tensor, ...], fresh: tuple[Tensor, ...]) -> tuple[float, Any]:
    """The AUC, and what the server tells of the deep table."""
    torch.manual_seed(0)
    model = WideAndDeep()
    for layer in (model.wide, model.deep):
        layer.options = replace(layer.options, dtype=dtype)
    with team() as here:
        worker = here.worker()
        carrier = carried(model, worker, optimizer=torch.optim.Adagrad, lr=0.01)
        for dense, ids, clicked in zip(*(each.split(BATCH) for each in data), strict=True):
            carrier.begin()
            binary_cross_entropy_with_logits(model(dense, ids), clicked).backward()
            carrier.optimizer.step()
            carrier.clear_gradients()
            carrier.optimizer.zero_grad()
        model.eval()
        found = AUC()
        with torch.no_grad():
            found.update(torch.sigmoid(model(*fresh[:2])), fresh[2])
        (told,) = worker.client.call_all({"method": "describe"})
        held: dict[str, Any] = {each.spec.name: each._table for each in here.handlers[0]._tables}
        told = told["tables"]["deep"] | {"row_bytes": held["deep"]._rows.row_bytes}
        worker.stop()
    return found.compute(), told


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=160_000)
    given = parser.parse_args()
    data, fresh = clicks(given.examples, 1), clicks(FRESH, 10**7)
    print("| dtype | AUC | against float32 | bytes a row | with the index |")
    print("|---|---|---|---|---|")
    exact = 0.0
    for dtype in DTYPES:
        found, told = trained(dtype, data, fresh)
        exact = exact or found
        whole = told["bytes"] / told["rows"]
        print(
            f"| {dtype} | {found:.4f} | {found - exact:+.4f} | {told['row_bytes']} | {whole:.0f} |"
        )


if __name__ == "__main__":
    main()
