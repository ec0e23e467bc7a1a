"""``python -m paddle.distributed.launch_ps``: jobs with servers, as Paddle 1 started them."""

import sys
from collections.abc import Sequence

from fleetx.compat.paddle.distributed.launch import launch as start


def launch(argv: Sequence[str] | None = None) -> int:
    """Start servers and workers; two of each, as Paddle 1 did, where nobody says how many."""
    given = list(sys.argv[1:] if argv is None else argv)
    named = ("--server_num", "--worker_num", "--endpoints", "--servers", "--worker_endpoints")
    if not any(flag.partition("=")[0] in named for flag in given):
        given = ["--server_num", "2", "--worker_num", "2", *given]
    return start(given)


if __name__ == "__main__":
    sys.exit(launch())
