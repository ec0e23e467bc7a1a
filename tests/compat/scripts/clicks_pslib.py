"""Clicks by days and passes, as scripts for pslib were written."""
import os
import random
import sys

import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base.role_maker import PaddleCloudRoleMaker
from paddle.fluid.incubate.fleet.parameter_server.pslib import fleet
from paddle.fluid.incubate.fleet.utils.fleet_util import FleetUtil

SLOTS = ["101", "102"]
folder = sys.argv[1]


def write_log(name, seed):
    rng = random.Random(seed)
    with open(name, "w") as log:
        for _ in range(96):
            click = rng.randrange(2)
            first = [rng.randrange(40) + 40 * click for _ in range(rng.randrange(1, 4))]
            line = [1, 1, 1, click, len(first)] + first + [1, rng.randrange(40) + 100]
            log.write(" ".join(str(v) for v in line) + "\n")


class Model(object):
    def __init__(self):
        self.scope = fluid.Scope()
        self.main, self.startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(self.main, self.startup), fluid.unique_name.guard():
            self.build()

    def build(self):
        show = fluid.layers.data("show", [-1, 1], dtype="int64", append_batch_size=False)
        click = fluid.layers.data("click", [-1, 1], dtype="int64", append_batch_size=False)
        slots = [fluid.layers.data(name, [-1, 1], dtype="int64", lod_level=1, append_batch_size=False)
                 for name in SLOTS]
        self.inputs = [show, click] + slots
        counts = fluid.layers.concat(
            [fluid.layers.cast(show, "float32"), fluid.layers.cast(click, "float32")], axis=1)
        counts.stop_gradient = True
        parts = []
        for slot in slots:
            rows = fluid.layers.embedding(slot, size=[1, 8], is_sparse=True, is_distributed=True,
                                          param_attr=fluid.ParamAttr(name="rows"))
            pooled = fluid.layers.sequence_pool(rows, "sum")
            parts.append(fluid.layers.continuous_value_model(pooled, counts, False))
        joined = fluid.layers.data_norm(fluid.layers.concat(parts, axis=1), name="seen")
        hidden = fluid.layers.fc(joined, 16, act="relu")
        chance = fluid.layers.sigmoid(fluid.layers.fc(hidden, 1))
        wanted = fluid.layers.cast(click, "float32")
        self.loss = fluid.layers.mean(fluid.layers.log_loss(chance, wanted))
        both = fluid.layers.concat([1 - chance, chance], axis=1)
        self.auc, _, self.buckets = fluid.layers.auc(both, click, num_thresholds=4095)


fleet.init(PaddleCloudRoleMaker())
model = Model()
adam = fleet.distributed_optimizer(
    fluid.optimizer.Adam(0.01), strategy={"use_cvm": True, "rows": {"sparse_embedx_dim": 8}})
adam.minimize([model.loss], [model.scope])
exe = fluid.Executor(fluid.CPUPlace())
if fleet.is_server():
    fleet.run_server()
elif fleet.is_worker():
    util, index = FleetUtil(), fleet.worker_index()
    log = os.path.join(folder, "clicks-%d" % index)
    write_log(log, index)
    with fluid.scope_guard(model.scope):
        exe.run(model.startup)
    fleet.init_worker()
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var(model.inputs)
    dataset.set_batch_size(16)
    dataset.set_pipe_command("cat")
    dataset.set_filelist([log])
    dataset.load_into_memory()
    positive, negative = model.buckets[2].name, model.buckets[3].name
    for number in range(8):
        dataset.local_shuffle()
        exe.train_from_dataset(model.main, dataset, scope=model.scope)
        fleet._role_maker._barrier_worker()
        auc = util.get_global_auc(model.scope, positive, negative)
        print("worker_index: %d, step%d cost = %f" % (index, number, 1.0 - auc))
        for name in (positive, negative):
            util.set_zero(name, model.scope)
    util.save_model(os.path.join(folder, "saved"), 20200101, 1)
    util.write_model_donefile(os.path.join(folder, "saved"), 20200101, 1, 7)
    assert util.get_last_save_model(os.path.join(folder, "saved"))[:2] == [20200101, 1]
    fleet.stop_worker()
