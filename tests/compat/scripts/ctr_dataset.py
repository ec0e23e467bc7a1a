"""Click-through rates on parameter servers; batches come from files through a generator."""
import os
import sys

import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

from ctr_model import ctr_dnn_model, samples

HERE = os.path.dirname(os.path.abspath(__file__))


def write_files(folder, number):
    if not os.path.exists(folder):
        os.makedirs(folder)
    for part in range(number):
        with open(os.path.join(folder, "part-%d" % part), "w") as f:
            for fields in samples(120, part):
                f.write("\t".join(" ".join(str(v) for v in field) for field in fields) + "\n")
    return [os.path.join(folder, "part-%d" % part) for part in range(number)]


fleet.init(role_maker=role_maker.PaddleCloudRoleMaker())
avg_cost, auc_var, batch_auc_var, inputs = ctr_dnn_model()
strategy = DistributeTranspilerConfig()
strategy.sync_mode = False
optimizer = fluid.optimizer.SGD(learning_rate=0.01)
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(avg_cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
elif fleet.is_worker():
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    folder = os.path.join(sys.argv[1], "data-%d" % fleet.worker_index())
    files = fleet.split_files(write_files(folder, 2 * fleet.worker_num()))
    dataset = fluid.DatasetFactory().create_dataset()
    dataset.set_use_var(inputs)
    dataset.set_pipe_command("python " + os.path.join(HERE, "ctr_generator.py"))
    dataset.set_batch_size(24)
    dataset.set_thread(1)
    dataset.set_filelist(files)

    feeder = fluid.DataFeeder(feed_list=inputs, place=fluid.CPUPlace())
    test = fluid.default_main_program().clone(for_test=True)

    def evaluate(epoch):
        loss, = exe.run(test, feed=feeder.feed(list(samples(48, 99))), fetch_list=[avg_cost.name])
        print("worker_index: %d, step%d cost = %f" % (fleet.worker_index(), epoch, loss[0] / 48))

    evaluate(0)
    for epoch in range(1, 7):
        exe.train_from_dataset(
            program=fleet.main_program, dataset=dataset, fetch_list=[auc_var], fetch_info=["auc"],
            print_period=5, debug=False)
        evaluate(epoch)
    if fleet.is_first_worker():
        fleet.save_persistables(exe, os.path.join(sys.argv[1], "model"))
    fleet.stop_worker()
