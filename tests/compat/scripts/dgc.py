"""Deep gradient compression with the optimizer of Fluid."""
import os

import numpy as np
import paddle
import paddle.fluid as fluid
from paddle.fluid.incubate.fleet.base import role_maker
from paddle.fluid.incubate.fleet.collective import DistributedStrategy, fleet


def train_reader():
    rng = np.random.RandomState(fleet.worker_index())
    for _ in range(64 * 20):
        image = rng.rand(1, 12, 12).astype('float32') * 0.2
        digit = rng.randint(3)
        image[0, 4 * digit:4 * digit + 4] += 1.0
        yield image.flatten(), digit


img = fluid.layers.data(name='img', shape=[1, 12, 12], dtype='float32')
label = fluid.layers.data(name='label', shape=[1], dtype='int64')
conv_pool = fluid.nets.simple_img_conv_pool(
    input=img, filter_size=3, num_filters=4, pool_size=2, pool_stride=2, act="relu")
hidden = fluid.layers.fc(input=conv_pool, size=200, act='relu')
prediction = fluid.layers.fc(input=hidden, size=3, act='softmax')
avg_loss = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
acc = fluid.layers.accuracy(input=prediction, label=label)

fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
optimizer = fluid.optimizer.DGCMomentumOptimizer(
    learning_rate=0.02, momentum=0.9, rampup_begin_step=4, rampup_step=4, sparsity=[0.5, 0.9],
    regularization=fluid.regularizer.L2Decay(1e-4))
optimizer = fleet.distributed_optimizer(optimizer, strategy=DistributedStrategy())
optimizer.minimize(avg_loss)

use_cuda = fluid.core.is_compiled_with_cuda()
place = fluid.CUDAPlace(int(os.getenv("FLAGS_selected_gpus", "0"))) if use_cuda else fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
feeder = fluid.DataFeeder(feed_list=['img', 'label'], place=place)
for step, data in enumerate(paddle.batch(train_reader, batch_size=64)()):
    loss, acc_val = exe.run(fleet.main_program, feed=feeder.feed(data), fetch_list=[avg_loss, acc])
    print("worker_index: %d, step%d cost = %f, acc = %f" % (fleet.worker_index(), step, loss[0], acc_val[0]))
