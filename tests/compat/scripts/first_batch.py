"""A regression on servers whose workers say neither when they come nor when they go."""

import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.incubate.distributed.fleet import role_maker
from paddle.incubate.distributed.fleet.parameter_server.distribute_transpiler import fleet

paddle.enable_static()
x = paddle.static.data(name="x", shape=[-1, 4], dtype="float32")
y = paddle.static.data(name="y", shape=[-1, 1], dtype="float32")
loss = paddle.mean(paddle.nn.functional.square_error_cost(paddle.static.nn.fc(x, 1), y))
fleet.init(role_maker.PaddleCloudRoleMaker())
fleet.distributed_optimizer(paddle.optimizer.SGD(learning_rate=0.1)).minimize(loss)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    drawn = np.random.RandomState(fleet.worker_index())
    for step in range(20):
        rows = drawn.randn(16, 4).astype("float32")
        feed = {"x": rows, "y": rows.sum(1, keepdims=True)}
        cost = exe.run(fleet.main_program, feed=feed, fetch_list=[loss.name])
        print(f"worker_index: {fleet.worker_index()}, step{step} cost = {cost[0]:f}")
