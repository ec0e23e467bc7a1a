"""Computing the vectors of all inputs, shared out among workers and resumable."""

import logging
from pathlib import Path

import torch
from tqdm import tqdm

from fleetx import roles
from fleetx.evaluate.inputs import Inputs, checksum
from fleetx.evaluate.models import Vectors, vectors_of
from fleetx.evaluate.vectors import Pieces, VectorFile

logger = logging.getLogger(__name__)


def evaluate(
    model: str,
    inputs: Inputs,
    output: Path,
    *,
    pretrained: str | None = None,
    batch_size: int = 32,
    class_dim: int | None = None,
) -> None:
    """Write the vectors of all inputs into one file; every worker calls it and does its share.

    A batch whose vectors are there from an earlier run, with any number of workers, is not
    computed again.

    Args:
        model: see ``vectors_of``.
        inputs: what is evaluated.
        output: the file.
        pretrained: the weights.
        batch_size: inputs that run together.
        class_dim: see ``vectors_of``.
    """
    worker, workers = roles.worker_index(), roles.worker_num()
    if pretrained is None and worker == 0 and ":" in model:
        logger.warning("without --pretrained_model, %s must have loaded its weights itself", model)
    vectors = vectors_of(model, pretrained, roles.device(), class_dim)
    if len(set(roles.util.all_gather(vectors.fingerprint))) > 1:
        raise ValueError(
            f"--model {model} has other weights on each worker; give --pretrained_model, or set a "
            "seed where the model is made."
        )
    pieces = Pieces(output, _meaning(model, vectors, inputs, batch_size))
    starts = range(0, len(inputs), batch_size)
    mine = [start for start in starts[worker::workers] if not pieces.has(start)]
    done = len(starts[worker::workers]) - len(mine)
    if done:
        logger.info("%d batches are there from an earlier run, %d are left", done, len(mine))
    _compute(vectors, inputs, mine, batch_size, pieces)
    roles.util.barrier()
    if worker == 0:
        joined, checksums = pieces.join(starts)
        labels = torch.tensor(inputs.labels)
        found = VectorFile(inputs.names, labels, checksums, joined, inputs.reading, model)
        found.save(output)
        pieces.remove()
    roles.util.barrier()


@torch.no_grad()
def _compute(
    vectors: Vectors, inputs: Inputs, starts: list[int], batch_size: int, pieces: Pieces
) -> None:
    for start in tqdm(starts, desc="evaluate", unit="batch", disable=roles.worker_index() != 0):
        batch = inputs.batch(start, min(start + batch_size, len(inputs)))
        pieces.save(start, vectors.run(batch), [checksum(each) for each in batch])


def _meaning(model: str, vectors: Vectors, inputs: Inputs, batch_size: int) -> str:
    """What pieces of two runs must have in common to belong together."""
    given = [model, vectors.fingerprint, inputs.reading.to_json(), str(batch_size)]
    return "\n".join([*given, *inputs.names])
