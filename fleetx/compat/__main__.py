"""``python -m fleetx.compat train.py …``: runs an old script of Paddle Fleet on PyTorch."""

import argparse
import sys
from collections.abc import Sequence

from fleetx.compat.scripts import run

EXAMPLES = """examples:
  python -m fleetx.compat train.py --lr 0.1                  one process
  python -m fleetx.compat -m paddle.distributed.launch --nproc_per_node 2 train.py
  fleetrun --paddle --nproc_per_node 2 --gpus none train.py  two CPU workers
  fleetx compat check train.py                               what it uses, and what is covered
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the script of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m fleetx.compat",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-m", dest="module", action="store_true", help="script is a module's name")
    parser.add_argument("script", help="the old script")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")
    given = parser.parse_args(argv)
    run(given.script, given.args, module=given.module)


if __name__ == "__main__":
    main(sys.argv[1:])
