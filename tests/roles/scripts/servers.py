"""A parameter-server job written with the script's own role maker."""

import os
import sys

import fleetx.roles as fleet

maker = fleet.UserDefinedRoleMaker(
    current_id=int(os.environ["INDEX"]),
    role=fleet.Role[os.environ["ROLE"]],
    worker_num=2,
    server_endpoints=["127.0.0.1:6001", "127.0.0.1:6002"],
    worker_endpoints=os.environ["WORKERS"].split() or None,
)
fleet.start(maker)
assert (fleet.worker_num(), fleet.server_num()) == (2, 2)
try:
    sys.stdout.write(f"sum {fleet.all_reduce(fleet.worker_index() + 1)}")
except RuntimeError as error:
    sys.stdout.write(str(error))
