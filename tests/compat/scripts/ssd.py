# -*- coding: UTF-8 -*-
"""A small SSD in a static program; --merge trains on the samples of two workers by turns."""
import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker

parser = argparse.ArgumentParser()
parser.add_argument("--merge", action="store_true")
parser.add_argument("--steps", type=int, default=12)
args = parser.parse_args()

paddle.enable_static()
CLASSES = 3  # the first one is the background
SIZE = 32


def ssd_net(image):
    def conv(x, num_filters):
        return fluid.layers.conv2d(
            input=x, num_filters=num_filters, filter_size=3, stride=2, padding=1, act='relu')

    stem = conv(image, 8)
    maps = [conv(stem, 16)]
    for _ in range(2):
        maps.append(conv(maps[-1], 16))
    return fluid.layers.multi_box_head(
        inputs=maps, image=image, num_classes=CLASSES, min_ratio=20, max_ratio=90,
        aspect_ratios=[[2.], [2., 3.], [2.]], base_size=SIZE, offset=0.5, flip=True)


def reader(worker):
    rng = np.random.RandomState(worker + 1)
    while True:
        batch = []
        for _ in range(4):
            image = 0.1 * rng.randn(3, SIZE, SIZE)
            boxes, labels = [], []
            for _ in range(rng.randint(1, 4)):
                left, top = rng.randint(0, 20, size=2)
                side = rng.randint(6, 12)
                label = rng.randint(1, CLASSES)
                image[label, top:top + side, left:left + side] += 1.0
                boxes.append(np.array([left, top, left + side, top + side]) / float(SIZE))
                labels.append(label)
            batch.append((image.astype('float32'), boxes, labels))
        yield batch


fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
fluid.default_startup_program().random_seed = 111
image = fluid.layers.data(name='image', shape=[3, SIZE, SIZE], dtype='float32')
gt_box = fluid.layers.data(name='gt_box', shape=[4], dtype='float32', lod_level=1)
gt_label = fluid.layers.data(name='gt_label', shape=[1], dtype='int32', lod_level=1)
locs, confs, box, box_var = ssd_net(image)
nmsed_out = fluid.layers.detection_output(locs, confs, box, box_var, nms_threshold=0.45)
test_program = fluid.default_main_program().clone(for_test=True)
loss = fluid.layers.ssd_loss(locs, confs, gt_box, gt_label, box, box_var)
loss = fluid.layers.reduce_sum(loss)

dist_strategy = fleet.DistributedStrategy()
if args.merge:
    dist_strategy.gradient_merge = True
    dist_strategy.gradient_merge_configs = {"k_steps": 2, "avg": True}
optimizer = fluid.optimizer.Momentum(
    learning_rate=0.02, momentum=0.9, regularization=fluid.regularizer.L2Decay(0.00005))
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)
optimizer.minimize(loss)

place = fluid.CUDAPlace(int(os.environ.get('FLAGS_selected_gpus', 0)))
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
feeder = fluid.DataFeeder(place=place, feed_list=[image, gt_box, gt_label])
workers = [0, 1] if args.merge else [fleet.worker_index()]
readers = {worker: reader(worker) for worker in workers}
for step in range(args.steps):
    for worker in workers:
        data = next(readers[worker])
        loss_v, = exe.run(fluid.default_main_program(), feed=feeder.feed(data), fetch_list=[loss])
        print("worker_index: %d, step%d cost = %f" % (worker, step, loss_v[0]))
found, = exe.run(test_program, feed={'image': np.stack([sample[0] for sample in data])},
                 fetch_list=[nmsed_out], return_numpy=False)
assert np.array(found).shape[1] == 6
print("found %d objects" % np.array(found).shape[0])
