"""Click-through rates on parameter servers; batches come from a PyReader."""
import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

from ctr_model import ctr_dnn_model, samples

role = role_maker.PaddleCloudRoleMaker()
fleet.init(role)
avg_cost, auc_var, batch_auc_var, inputs = ctr_dnn_model()
py_reader = fluid.io.PyReader(feed_list=inputs, capacity=8, use_double_buffer=False, iterable=False)

config = DistributeTranspilerConfig()
config.sync_mode = False
config.runtime_split_send_recv = True
optimizer = fluid.optimizer.Adagrad(learning_rate=0.1)
optimizer = fleet.distributed_optimizer(optimizer, config)
optimizer.minimize(avg_cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    py_reader.decorate_sample_list_generator(
        paddle.batch(lambda: samples(192, fleet.worker_index()), batch_size=24))
    step = 0
    for epoch in range(3):
        py_reader.start()
        try:
            while True:
                loss, auc = exe.run(
                    program=fleet.main_program, fetch_list=[avg_cost.name, auc_var.name])
                print("worker_index: %d, step%d cost = %f, auc = %f" % (
                    fleet.worker_index(), step, np.mean(loss) / 24, np.mean(auc)))
                step += 1
        except fluid.core.EOFException:
            py_reader.reset()
    fleet.stop_worker()
