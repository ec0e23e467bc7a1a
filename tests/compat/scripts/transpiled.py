"""A regression on servers that the script finds by itself, as programs of Paddle 1.5 did."""

import os

import numpy as np
import paddle.fluid as fluid

x = fluid.layers.data(name="x", shape=[4], dtype="float32")
y = fluid.layers.data(name="y", shape=[1], dtype="float32")
guess = fluid.layers.fc(input=x, size=1)
loss = fluid.layers.mean(fluid.layers.square_error_cost(input=guess, label=y))
fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)

worker = int(os.getenv("PADDLE_TRAINER_ID", "0"))
servers = os.getenv("PADDLE_PSERVERS_IP_PORT_LIST")
transpiler = fluid.DistributeTranspiler()
transpiler.transpile(worker, pservers=servers, trainers=int(os.getenv("PADDLE_TRAINERS_NUM")))
exe = fluid.Executor(fluid.CPUPlace())

if os.getenv("TRAINING_ROLE") == "PSERVER":
    here = "%s:%s" % (os.getenv("POD_IP"), os.getenv("PADDLE_PORT"))
    program, startup = transpiler.get_pserver_programs(here)
    exe.run(startup)
    exe.run(program)
else:
    program = transpiler.get_trainer_program()
    exe.run(fluid.default_startup_program())
    drawn = np.random.RandomState(worker)
    for step in range(20):
        rows = drawn.randn(16, 4).astype("float32")
        feed = {"x": rows, "y": rows.sum(1, keepdims=True)}
        cost = exe.run(program, feed=feed, fetch_list=[loss])[0]
        print("worker_index: %d, step%d cost = %f" % (worker, step, cost))
    exe.close()
