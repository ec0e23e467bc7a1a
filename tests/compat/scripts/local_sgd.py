"""Local SGD by hand: a loop that runs two programs by turns; the step may adapt itself."""
import argparse
import math
import os

import numpy as np
import paddle.fluid as fluid
import paddle.fluid.core as core
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

parser = argparse.ArgumentParser()
parser.add_argument("--adaptive", action="store_true")
args = parser.parse_args()


def get_local_sgd_steps(passid, local_sgd_steps, local_sgd_warmup):
    offset = passid - local_sgd_warmup
    if offset < 0:
        return 1
    warm_up = [2 ** i for i in range(local_sgd_steps) if 2 ** i <= local_sgd_steps]
    if offset >= len(warm_up):
        return local_sgd_steps
    else:
        return warm_up[offset]


def adaptive_local_step(ini_loss, ini_lr, cur_loss, cur_lr, base_step, pre_step):
    inf_loss = 0.0
    fir = ini_lr * (cur_loss - inf_loss)
    sec = cur_lr * max((ini_loss - inf_loss), 1e-12)
    step = int(base_step * math.sqrt(fir / sec))
    if step < 1:
        step = 1
    if step > pre_step + 20:
        step = pre_step
    return step


def build_allreduce_program(main_prog, startup_program):
    ring_id = 0
    with fluid.program_guard(main_prog, startup_program):
        tindata = fluid.layers.data(name="tindata", shape=[1], dtype='float32')
        toutdata = main_prog.current_block().create_var(
            name="outofallreduce", dtype='float32', type=core.VarDesc.VarType.LOD_TENSOR,
            persistable=False, stop_gradient=False)
        main_prog.global_block().append_op(
            type="c_allreduce_sum", inputs={'X': tindata}, attrs={'ring_id': ring_id},
            outputs={'Out': toutdata})
        main_prog.global_block().append_op(
            type="c_sync_comm_stream", inputs={'X': toutdata}, outputs={'Out': toutdata},
            attrs={'ring_id': ring_id})
    return toutdata


x = fluid.layers.data(name="x", shape=[16], dtype='float32')
y = fluid.layers.data(name="y", shape=[1], dtype='int64')
hidden = fluid.layers.fc(input=x, size=32, act='tanh')
prediction = fluid.layers.fc(input=hidden, size=2, act='softmax')
avg_cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=y))

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
lr = fluid.layers.piecewise_decay(boundaries=[20, 30], values=[0.5, 0.2, 0.1])
optimizer = fluid.optimizer.SGD(learning_rate=lr)
dist_strategy = DistributedStrategy()
dist_strategy.use_local_sgd = True
dist_strategy.mode = "collective"
dist_strategy.collective_mode = "local_sgd"
dist_strategy.exec_strategy = fluid.ExecutionStrategy()
optimizer = fleet.distributed_optimizer(optimizer, strategy=dist_strategy)
optimizer.minimize(avg_cost, fluid.default_startup_program())

gpu_id = int(os.getenv("FLAGS_selected_gpus", "0"))
exe = fluid.Executor(fluid.CUDAPlace(gpu_id))
exe.run(fleet.startup_program)
all_train_prog, all_startup_prog = fluid.Program(), fluid.Program()
result = build_allreduce_program(all_train_prog, all_startup_prog)
all_exe = fluid.Executor(fluid.CUDAPlace(gpu_id))
all_exe.run(all_startup_prog)

rng = np.random.RandomState(fleet.worker_index())
step_cnt, pre_step, ini_loss, cur_local_sgd = 0, 1, None, 1
for pass_id in range(4):
    if not args.adaptive:
        cur_local_sgd = get_local_sgd_steps(pass_id, 4, 1)
    for batch in range(10):
        step_cnt += 1
        data = rng.rand(32, 16).astype('float32')
        label = (data.sum(1, keepdims=True) > 8).astype('int64')
        current_prog = fleet.main_program if step_cnt % cur_local_sgd == 0 else fleet._origin_program
        loss, cur_lr = exe.run(
            current_prog, feed={"x": data, "y": label}, fetch_list=[avg_cost.name, lr.name],
            use_program_cache=True)
        print("worker_index: %d, step%d cost = %f" % (fleet.worker_index(), step_cnt, loss[0]))
    if args.adaptive:
        all_loss = all_exe.run(
            all_train_prog, feed={'tindata': np.array(loss).reshape(1, 1)}, fetch_list=[result.name])
        reduce_loss = float(all_loss[0]) / fleet.worker_num()
        ini_loss = ini_loss or reduce_loss
        cur_local_sgd = adaptive_local_step(ini_loss, 0.5, reduce_loss, float(cur_lr[0]), 2, pre_step)
        pre_step = cur_local_sgd
        print("worker_index: %d, local steps %d" % (fleet.worker_index(), cur_local_sgd))
