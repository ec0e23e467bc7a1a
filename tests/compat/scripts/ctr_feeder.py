"""Click-through rates on parameter servers; batches come from a DataFeeder."""
import argparse

import paddle
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

from ctr_model import ctr_dnn_model, samples

parser = argparse.ArgumentParser()
parser.add_argument("--sync", type=int, default=1)
args = parser.parse_args()

role = role_maker.PaddleCloudRoleMaker()
fleet.init(role)

avg_cost, auc_var, batch_auc_var, inputs = ctr_dnn_model()
config = DistributeTranspilerConfig()
config.sync_mode = bool(args.sync)
optimizer = fluid.optimizer.Adam(learning_rate=0.02)
optimizer = fleet.distributed_optimizer(optimizer, config)
optimizer.minimize(avg_cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()

if fleet.is_worker():
    place = fluid.CPUPlace()
    exe = fluid.Executor(place)
    fleet.init_worker()
    exe.run(fleet.startup_program)
    feeder = fluid.DataFeeder(feed_list=inputs, place=place)
    train_reader = paddle.batch(
        paddle.reader.shuffle(lambda: samples(240, fleet.worker_index()), buf_size=100), batch_size=24)
    step = 0
    for pass_id in range(3):
        for batch_id, data in enumerate(train_reader()):
            loss, auc, batch_auc = exe.run(
                fleet.main_program, feed=feeder.feed(data), fetch_list=[avg_cost, auc_var, batch_auc_var])
            print("worker_index: %d, step%d cost = %f, auc = %f" % (
                fleet.worker_index(), step, loss[0] / len(data), auc[0]))
            step += 1
    fleet.stop_worker()
