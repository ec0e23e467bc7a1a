"""Sending the inputs of a vector file to a service and comparing what it answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fleetx.evaluate.class_names import class_names
from fleetx.evaluate.comparison import Limits, compare
from fleetx.evaluate.inputs import Inputs, checksum
from fleetx.evaluate.report import Report, Worst
from fleetx.evaluate.service import Array, Service
from fleetx.evaluate.vectors import VectorFile


def inputs_again(vectors: VectorFile, data_dir: str | None) -> Inputs:
    """The inputs of a vector file, from where they were or from another folder."""
    reading = vectors.reading
    inputs = Inputs(replace(reading, data_dir=data_dir) if data_dir else reading)
    if inputs.names != vectors.names:
        raise ValueError(
            f"the list {inputs.reading.list_file!r} has changed since the vectors were computed; "
            "run 'fleetx evaluate' again, or set --data_dir to the old list."
        )
    return inputs


def answers(service: Service, vectors: VectorFile, inputs: Inputs, batch_size: int) -> Array:
    """What the service says about each input."""
    found = []
    starts = range(0, len(inputs), batch_size)
    for start in tqdm(starts, desc="verify", unit="batch"):
        end = min(start + batch_size, len(inputs))
        batch = inputs.batch(start, end)
        for at, each in enumerate(batch, start):
            if checksum(each) != int(vectors.checksums[at]):
                raise ValueError(
                    f"{inputs.names[at]!r} is not the input of which the vector was computed; run "
                    "'fleetx evaluate' again, or set --data_dir to the old files."
                )
        found.append(service.infer(batch.float().numpy()))
    return np.concatenate(found)


def report_on(
    endpoint: str, vectors: VectorFile, online: Array, inputs: Inputs, *, limits: Limits, shown: int
) -> Report:
    """Compare, and describe the inputs that are farthest apart."""
    offline: Array = vectors.vectors.numpy()
    comparison = compare(offline, online, limits)
    chosen = comparison.worst(shown)
    worst = [
        Worst(
            name=vectors.names[at],
            max_abs=float(comparison.max_abs[at]),
            cosine=float(comparison.cosine[at]),
            top_k=float(comparison.top_k[at]),
            offline=_top(offline[at], limits.top_k),
            online=_top(online[at], limits.top_k),
        )
        for at in chosen
    ]
    pictures = [inputs[at][1].float().numpy() for at in chosen]
    folder = Path(inputs.reading.data_dir)
    classes = class_names(folder, vectors.names, vectors.labels.tolist())
    return Report(endpoint, vectors.model, comparison, worst, pictures, classes)


def write(report: Report, stem: Path) -> list[Path]:
    """Write the report beside each other as JSON and HTML; the paths."""
    files = {
        stem.with_suffix(".json"): report.to_json(),
        stem.with_suffix(".html"): report.to_html(),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return list(files)


def _top(scores: Array, k: int) -> list[int]:
    return [int(at) for at in np.argsort(-scores, kind="stable")[:k]]
