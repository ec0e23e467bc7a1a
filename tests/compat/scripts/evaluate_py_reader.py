"""Vectors of a trained model, batch after batch from a py_reader."""
import os
import sys

import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet

model_path = sys.argv[1]


def network(image):
    hidden = fluid.layers.fc(input=image, size=16, act='relu', name="hidden")
    return fluid.layers.fc(input=hidden, size=4, name="emb")


def read(seed):
    rng = np.random.RandomState(seed)
    centres = np.random.RandomState(0).randn(4, 8)

    def reader():
        for _ in range(160):
            label = rng.randint(4)
            yield (centres[label] + 0.2 * rng.randn(8)).astype('float32'), label

    return reader


def build_program(main_prog, startup_prog, training):
    with fluid.program_guard(main_prog, startup_prog):
        py_reader = fluid.layers.py_reader(
            capacity=16, shapes=[[-1, 8], [-1, 1]], lod_levels=[0, 0], dtypes=["float32", "int64"],
            use_double_buffer=True)
        with fluid.unique_name.guard():
            image, label = fluid.layers.read_file(py_reader)
            out = network(image)
            if training:
                cost = fluid.layers.softmax_with_cross_entropy(out, label)
                avg_cost = fluid.layers.mean(x=cost)
                optimizer = fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9)
                optimizer = fleet.distributed_optimizer(optimizer, strategy=DistributedStrategy())
                optimizer.minimize(avg_cost, startup_prog)
                return avg_cost, py_reader
    return out, py_reader


fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
place = fluid.CUDAPlace(int(os.environ.get('FLAGS_selected_gpus', 0)))
exe = fluid.Executor(place)

main_prog, startup_prog = fluid.Program(), fluid.Program()
avg_cost, py_reader = build_program(main_prog, startup_prog, True)
exe.run(startup_prog)
py_reader.decorate_paddle_reader(paddle.batch(read(fleet.worker_index()), batch_size=16))
py_reader.start()
step = 0
try:
    while True:
        loss, = exe.run(fleet.main_program, fetch_list=[avg_cost.name])
        print("worker_index: %d, step%d cost = %f" % (fleet.worker_index(), step, loss[0]))
        step += 1
except fluid.core.EOFException:
    py_reader.reset()
if fleet.worker_index() == 0:
    if not os.path.exists(model_path):
        os.makedirs(model_path)
    fluid.io.save_persistables(exe, model_path, main_program=fleet._origin_program)

test_prog, test_startup = fluid.Program(), fluid.Program()
with fluid.scope_guard(fluid.core.Scope()):
    emb, test_reader = build_program(test_prog, test_startup, False)
    exe.run(test_startup)

    def if_exist(var):
        return os.path.exists(os.path.join(model_path, var.name))

    fluid.io.load_vars(exe, model_path, main_program=test_prog, predicate=if_exist)
    test_reader.decorate_paddle_reader(paddle.batch(read(100), batch_size=16))
    test_reader.start()
    result = []
    try:
        while True:
            result.append(exe.run(test_prog, fetch_list=[emb], use_program_cache=True)[0])
    except fluid.core.EOFException:
        test_reader.reset()
labels = np.array([label for _, label in read(100)()])
found = np.concatenate(result).argmax(1)
print("evaluated %d, accuracy %f" % (len(found), (found == labels).mean()))
assert (found == labels).mean() > 0.7
