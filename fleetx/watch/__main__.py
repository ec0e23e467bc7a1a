"""What `fleetrun --watch` starts: the same as `fleetx watch`."""

import argparse
import sys

from fleetx.watch.command import add_arguments, run


def main() -> int:
    """Serve until told to stop."""
    parser = argparse.ArgumentParser(prog="fleetx watch")
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
