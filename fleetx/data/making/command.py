"""``fleetx data make``: draw a small data set of flowers."""

import argparse
import sys
from dataclasses import fields
from pathlib import Path

EXAMPLES = """\
examples:
  fleetx data make flowers                            the archives of Flowers-102, 10 classes
  fleetx data make ImageNet --layout imagenet         train.txt and val.txt
  fleetx data make flowers --classes 102 --size 224   more and larger
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx data``."""
    commands = parser.add_subparsers(dest="command", required=True, metavar="make")
    made = commands.add_parser(
        "make",
        help="draw a small data set of flowers",
        description="Draws flowers, one kind for each class, and writes them as JPEG files.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("folder", type=Path, help="where to; the same command again does nothing")
    made.add_argument(
        "--layout", default="flowers", help="flowers or imagenet (default: %(default)s)"
    )
    for name, default, text in (
        ("classes", 10, "kinds of flowers"),
        ("train_images", 40, "of each class"),
        ("val_images", 10, "of each class"),
        ("size", 96, "pixels on the short side"),
        ("seed", 0, "of everything that is chance"),
    ):
        made.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} (default: %(default)s)"
        )


def run(args: argparse.Namespace) -> int:
    """Draw, with a progress bar."""
    from tqdm import tqdm

    from fleetx.data.making.layouts import Recipe, make

    try:
        recipe = Recipe(**{field.name: getattr(args, field.name) for field in fields(Recipe)})
        with tqdm(total=recipe.total, desc="drawing", unit="image", leave=False) as bar:
            fresh = make(args.folder.resolve(), recipe, bar.update)
    except (ValueError, OSError, ImportError) as error:
        print(f"fleetx data make: error: {_told(args.folder, error)}", file=sys.stderr)
        return 2
    verb = "holds" if fresh else "already holds"
    print(f"{args.folder} {verb} {recipe.total} images of {recipe.classes} kinds of flowers")
    return 0


def _told(folder: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:  # the system's own words
        return f"{folder} cannot be made ({error.strerror}); name a place where you may write."
    return str(error)
