"""Two workers of which only the second comes to reduce."""

import os
import sys
import time

import fleetx.roles as fleet

fleet.start(is_collective=True)
os.environ["FLEETX_TIMEOUT"] = "1"  # only now: starting may take longer on a busy machine
if fleet.rank() == 1:
    begin = time.monotonic()
    try:
        fleet.util.all_reduce(1)
    except RuntimeError as error:
        sys.stdout.write(f"{time.monotonic() - begin:.1f} {error}")
else:
    time.sleep(4)
