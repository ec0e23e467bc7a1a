"""``fleetrun --meeting_point``: machines meet on one that does not train, so that all may be lost.

The launcher at --master keeps what the launchers tell each other, and with it the job is lost.
"""

import time

from fleetx.launch.addresses import is_local, resolve, split_endpoint
from fleetx.launch.console import say, warn
from fleetx.launch.errors import LaunchError
from fleetx.launch.job_board import FAREWELL, JobBoard
from fleetx.launch.ports import listen

FLAG = "--meeting_point"
LOOK = 0.2


def keep(endpoint: str) -> int:
    """Serves the launchers of one job until it is over; its exit code."""
    host, port = split_endpoint(endpoint, FLAG)
    if not is_local(resolve(host, FLAG)):
        raise LaunchError(
            f"{FLAG} {host} is no address of this machine, so nobody could meet here; give the one "
            "under which the machines of the job reach it"
        )
    listener = listen("", port, FLAG)
    from fleetx.launch.store import serve  # torch, which a mistake above does not wait for

    board = JobBoard(serve(listener))
    say(f"the machines of one job meet here: fleetrun --master {endpoint}; this ends with the job")
    while not (board.failed() or board.succeeded()):
        time.sleep(LOOK)
    code = 0
    if not board.succeeded():
        failure = board.first_failure()
        warn(failure.headline())
        code = failure.exit_code
    time.sleep(FAREWELL)  # others may still read it
    return code
