"""A parameter-server job written with the script's own role maker."""

import sys

import fleetx.roles as fleet

role, index, workers = sys.argv[1:]
maker = fleet.UserDefinedRoleMaker(
    current_id=int(index),
    role=fleet.Role[role],
    worker_num=2,
    server_endpoints=["127.0.0.1:6001", "127.0.0.1:6002"],
    **({"worker_endpoints": workers.split(",")} if workers != "none" else {}),
)
fleet.start(maker)
assert (fleet.worker_num(), fleet.server_num()) == (2, 2)
try:
    sys.stdout.write(f"sum {fleet.all_reduce(fleet.worker_index() + 1)}")
except RuntimeError as error:
    sys.stdout.write(str(error))
