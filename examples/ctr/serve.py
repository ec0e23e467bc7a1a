"""Answers with what a running job has learned, up to the last seconds.

python examples/ctr/serve.py output/serve --follow 127.0.0.1:6171,127.0.0.1:6172
"""

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fleetx.metrics import AUC
from fleetx.nn import Follower, load_inference_model

if TYPE_CHECKING:
    from examples.ctr.clicks import examples
    from examples.ctr.model import WideAndDeep
else:
    from clicks import examples
    from model import WideAndDeep


def arguments() -> argparse.Namespace:
    """What may be said on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="what train.py --serve writes")
    parser.add_argument("--follow", required=True, help="the servers of the job")
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--every", type=float, default=2.0, help="seconds between two looks")
    return parser.parse_args()


@torch.no_grad()
def main() -> None:
    """Show how good the answers are while others train."""
    given = arguments()
    while not (given.model / "dense.safetensors").exists():
        time.sleep(0.1)  # until the first epoch is over
    with Follower(given.follow) as follower:
        model = load_inference_model(given.model, WideAndDeep(), follow=follower)
        dense, ids, truth = examples(20_000, 10**8)
        clicks = torch.bernoulli(torch.from_numpy(truth), generator=torch.Generator())
        try:
            follower.wait(60)
        except TimeoutError as error:
            print(f"answering from the save: {error}", flush=True)
        for _ in range(given.looks):
            found, best = AUC(), AUC()
            logits = model(torch.from_numpy(dense).float(), torch.from_numpy(ids))
            found.update(torch.sigmoid(logits), clicks)
            best.update(torch.from_numpy(truth), clicks)
            reached = f"AUC {found.compute():.4f} of {best.compute():.4f}"
            print(f"{reached}, rows at most {follower.age:.1f} s old", flush=True)
            time.sleep(given.every)


if __name__ == "__main__":
    main()
