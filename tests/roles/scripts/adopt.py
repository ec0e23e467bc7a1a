"""The script makes its own process group before it starts fleetx."""

import os
import sys

import pytest
import torch.distributed as dist

import fleetx.roles as fleet

dist.init_process_group("gloo")
os.environ.update(PADDLE_TRAINER_ID="7", PADDLE_TRAINERS_NUM="9")  # the group knows better
me = fleet.start(is_collective=True)
assert (me.index, me.worker_num) == (dist.get_rank(), 2)
assert fleet.start(is_collective=True) is me
assert fleet.util.all_gather(me.local_rank) == [0, 1]
assert len(set(fleet.worker_endpoints())) == 2
fleet.stop()
assert dist.is_initialized(), "the group is the script's"
with pytest.raises(ValueError, match="already has a group in which this process is rank"):
    fleet.start(fleet.UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:6170"]))
sys.stdout.write(f"{me.source}, {me.node_num} node")
dist.destroy_process_group()
