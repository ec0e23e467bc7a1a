# -*- coding: UTF-8 -*-
"""A small ResNet in a static program; the strategies are named on the command line."""
import argparse
import os

import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.distributed.fleet as fleet
import paddle.distributed.fleet.base.role_maker as role_maker
from paddle.fluid.param_attr import ParamAttr

parser = argparse.ArgumentParser()
parser.add_argument("--strategies", type=str, default="")
parser.add_argument("--steps", type=int, default=16)
args = parser.parse_args()

paddle.enable_static()
CLASSES = 4


class ResNet(object):
    def __init__(self, layers=50):
        self.layers = layers
        self.checkpoints = []

    def net(self, input, class_dim=1000):
        conv = self.conv_bn_layer(input=input, num_filters=8, filter_size=3, stride=2, act='relu', name="conv1")
        conv = fluid.layers.pool2d(input=conv, pool_size=3, pool_stride=2, pool_padding=1, pool_type='max')
        for block, (num_filters, stride) in enumerate([(4, 1), (8, 2)]):
            conv = self.bottleneck_block(
                input=conv, num_filters=num_filters, stride=stride, name="res%da" % (block + 2))
            self.checkpoints.append(conv)
        pool = fluid.layers.pool2d(input=conv, pool_type='avg', global_pooling=True)
        if 'dgc' in args.strategies:  # it compresses large gradients
            pool = fluid.layers.fc(input=pool, size=512, act='relu')
        stdv = 1.0 / np.sqrt(pool.shape[1] * 1.0)
        out = fluid.layers.fc(
            input=pool, size=class_dim,
            param_attr=fluid.param_attr.ParamAttr(initializer=fluid.initializer.Uniform(-stdv, stdv)))
        return out

    def conv_bn_layer(self, input, num_filters, filter_size, stride=1, groups=1, act=None, name=None):
        conv = fluid.layers.conv2d(
            input=input, num_filters=num_filters, filter_size=filter_size, stride=stride,
            padding=(filter_size - 1) // 2, groups=groups, act=None,
            param_attr=ParamAttr(name=name + "_weights"), bias_attr=False)
        bn_name = "bn_" + name if name == "conv1" else "bn" + name[3:]
        return fluid.layers.batch_norm(
            input=conv, act=act,
            param_attr=ParamAttr(name=bn_name + '_scale'),
            bias_attr=ParamAttr(bn_name + '_offset'),
            moving_mean_name=bn_name + '_mean',
            moving_variance_name=bn_name + '_variance')

    def shortcut(self, input, ch_out, stride, name):
        ch_in = input.shape[1]
        if ch_in != ch_out or stride != 1:
            return self.conv_bn_layer(input, ch_out, 1, stride, name=name)
        return input

    def bottleneck_block(self, input, num_filters, stride, name):
        conv0 = self.conv_bn_layer(input, num_filters, 1, act='relu', name=name + "_branch2a")
        conv1 = self.conv_bn_layer(conv0, num_filters, 3, stride=stride, act='relu', name=name + "_branch2b")
        conv2 = self.conv_bn_layer(conv1, num_filters * 4, 1, act=None, name=name + "_branch2c")
        short = self.shortcut(input, num_filters * 4, stride, name=name + "_branch1")
        return fluid.layers.elementwise_add(x=short, y=conv2, act='relu')


def reader():
    centres = np.random.RandomState(0).randn(CLASSES, 3, 16, 16)
    rng = np.random.RandomState(fleet.worker_index() + 1)
    while True:
        label = rng.randint(CLASSES, size=(1,))
        image = centres[label[0]] + 0.3 * rng.randn(3, 16, 16)
        yield image.astype('float32'), label.astype('int64')


fleet.init(role_maker.PaddleCloudRoleMaker(is_collective=True))
image = fluid.data(name="image", shape=[None, 3, 16, 16], dtype='float32')
label = fluid.data(name="label", shape=[None, 1], dtype='int64')
model = ResNet(layers=50)
out = model.net(input=image, class_dim=CLASSES)
cost, prob = fluid.layers.softmax_with_cross_entropy(out, label, return_softmax=True)
avg_cost = fluid.layers.mean(cost)
acc = fluid.layers.accuracy(input=prob, label=label, k=1)

strategies = [name for name in args.strategies.split("+") if name]
dist_strategy = fleet.DistributedStrategy()
if "amp" in strategies:
    dist_strategy.amp = True
    dist_strategy.amp_configs = {"init_loss_scaling": 128.0, "custom_white_list": ['conv2d']}
if "recompute" in strategies:
    dist_strategy.recompute = True
    dist_strategy.recompute_configs = {"checkpoints": [c.name for c in model.checkpoints]}
if "lars" in strategies:
    dist_strategy.lars = True
    dist_strategy.lars_configs = {
        "lars_coeff": 0.02,
        "lars_weight_decay": 0.0005,
        "exclude_from_weight_decay": ['batch_norm', '.b_0']
    }
if "lamb" in strategies:
    dist_strategy.lamb = True
    dist_strategy.lamb_configs = {'lamb_weight_decay': 0.01, 'exclude_from_weight_decay': []}
if "localsgd" in strategies:
    dist_strategy.localsgd = True
    dist_strategy.localsgd_configs = {"k_steps": 2, "begin_step": 4}
if "adaptive_localsgd" in strategies:
    dist_strategy.adaptive_localsgd = True
    dist_strategy.adaptive_localsgd_configs = {"init_k_steps": 1, "begin_step": 4}
if "dgc" in strategies:
    dist_strategy.dgc = True
    dist_strategy.dgc_configs = {"rampup_begin_step": 4, "sparsity": [0.9]}
if "auto" in strategies:
    dist_strategy.auto = True

if "lamb" in strategies:
    optimizer = fluid.optimizer.Adam(learning_rate=0.02)
else:
    optimizer = fluid.optimizer.Momentum(
        learning_rate=1.0 if "lars" in strategies else 0.05, momentum=0.9)
optimizer = fleet.distributed_optimizer(optimizer, dist_strategy)
optimizer.minimize(avg_cost)

place = fluid.CUDAPlace(int(os.environ.get('FLAGS_selected_gpus', 0)))
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())

loader = fluid.io.DataLoader.from_generator(feed_list=[image, label], capacity=4, iterable=True)
loader.set_sample_generator(reader, batch_size=16, drop_last=True, places=place)
for i, data in enumerate(loader()):
    cost_val, acc_val = exe.run(
        fluid.default_main_program(), feed=data, fetch_list=[avg_cost.name, acc.name])
    print("worker_index: %d, step%d cost = %f, acc = %f" % (fleet.worker_index(), i, cost_val[0], acc_val[0]))
    if i + 1 >= args.steps:
        break
