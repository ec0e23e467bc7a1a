"""A small BERT learns to fill masked words: recompute, mixed precision, LAMB."""
import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.layers as layers
import paddle.distributed.fleet as fleet

paddle.enable_static()
VOCAB, HIDDEN, HEADS, LENGTH, MASKED = 32, 16, 2, 8, 2


def param(name, scale=0.02):
    return fluid.ParamAttr(name=name, initializer=fluid.initializer.TruncatedNormal(scale=scale))


def multi_head_attention(q_in, bias, name):
    def project(tag):
        out = layers.fc(
            input=q_in, size=HIDDEN, num_flatten_dims=2, param_attr=param(name + "_" + tag + "_fc.w_0"),
            bias_attr=name + "_" + tag + "_fc.b_0")
        out = layers.reshape(x=out, shape=[0, 0, HEADS, HIDDEN // HEADS], inplace=True)
        return layers.transpose(x=out, perm=[0, 2, 1, 3])

    q, k, v = project("query"), project("key"), project("value")
    q = layers.scale(x=q, scale=(HIDDEN // HEADS) ** -0.5)
    product = layers.matmul(x=q, y=k, transpose_y=True)
    product += bias
    weights = layers.softmax(product)
    weights = layers.dropout(
        weights, dropout_prob=0.1, dropout_implementation="upscale_in_train", is_test=False)
    out = layers.transpose(layers.matmul(weights, v), perm=[0, 2, 1, 3])
    out = layers.reshape(x=out, shape=[0, 0, HIDDEN], inplace=True)
    return layers.fc(
        input=out, size=HIDDEN, num_flatten_dims=2, param_attr=param(name + "_output_fc.w_0"),
        bias_attr=name + "_output_fc.b_0")


def norm(x, name):
    return layers.layer_norm(
        x, begin_norm_axis=len(x.shape) - 1,
        param_attr=fluid.ParamAttr(name=name + "_scale", initializer=fluid.initializer.Constant(1.)),
        bias_attr=fluid.ParamAttr(name=name + "_bias", initializer=fluid.initializer.Constant(0.)))


def encoder_layer(x, bias, name):
    x = norm(x + multi_head_attention(x, bias, name + "_multi_head_att"), name + "_post_att_layer_norm")
    hidden = layers.fc(
        input=x, size=4 * HIDDEN, num_flatten_dims=2, act='gelu', param_attr=param(name + "_ffn_fc_0.w_0"))
    out = layers.fc(
        input=hidden, size=HIDDEN, num_flatten_dims=2, param_attr=param(name + "_ffn_fc_1.w_0"))
    return norm(x + out, name + "_post_ffn_layer_norm")


fleet.init(is_collective=True)
src_ids = fluid.data(name='src_ids', shape=[-1, LENGTH, 1], dtype='int64')
pos_ids = fluid.data(name='pos_ids', shape=[-1, LENGTH, 1], dtype='int64')
input_mask = fluid.data(name='input_mask', shape=[-1, LENGTH, 1], dtype='float32')
mask_pos = fluid.data(name='mask_pos', shape=[-1, 1], dtype='int64')
mask_label = fluid.data(name='mask_label', shape=[-1, 1], dtype='int64')

word = layers.embedding(input=src_ids, size=[VOCAB, HIDDEN], param_attr=param("word_embedding", 0.2))
place_ = layers.embedding(input=pos_ids, size=[LENGTH, HIDDEN], param_attr=param("pos_embedding", 0.2))
emb = norm(word + place_, "pre_encoder")
self_attn_mask = layers.matmul(x=input_mask, y=input_mask, transpose_y=True)
self_attn_mask = layers.scale(x=self_attn_mask, scale=10000.0, bias=-1.0, bias_after_scale=False)
bias = layers.stack(x=[self_attn_mask] * HEADS, axis=1)
bias.stop_gradient = True
checkpoints = []
enc = emb
for i in range(2):
    enc = encoder_layer(enc, bias, "encoder_layer_" + str(i))
    checkpoints.append(enc.name)
flat = layers.reshape(x=enc, shape=[-1, HIDDEN])
feat = layers.gather(input=flat, index=layers.cast(x=mask_pos, dtype='int32'))
fc_out = layers.matmul(
    x=feat, y=fluid.default_main_program().global_block().var("word_embedding"), transpose_y=True)
fc_out += layers.create_parameter(
    shape=[VOCAB], dtype='float32',
    attr=fluid.ParamAttr(name="mask_lm_out_fc.b_0", initializer=fluid.initializer.Constant(value=0.0)),
    is_bias=True)
mask_lm_loss = layers.softmax_with_cross_entropy(logits=fc_out, label=mask_label)
loss = layers.mean(mask_lm_loss)

strategy = fleet.DistributedStrategy()
strategy.recompute = True
strategy.recompute_configs = {"checkpoints": checkpoints}
strategy.amp = True
strategy.amp_configs = {"custom_black_list": ['layer_norm', 'softmax'], "init_loss_scaling": 1024.0}
strategy.lamb = True
strategy.lamb_configs = {
    'lamb_weight_decay': 0.01, 'exclude_from_weight_decay': ['layer_norm_scale', 'layer_norm_bias', '.b_0']}
scheduler = layers.linear_lr_warmup(
    layers.polynomial_decay(learning_rate=0.05, decay_steps=200, end_learning_rate=0.0, power=1.0, cycle=False),
    warmup_steps=4, start_lr=0.0, end_lr=0.05)
optimizer = fluid.optimizer.Adam(learning_rate=scheduler)
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(loss)

exe = fluid.Executor(fluid.CUDAPlace(0))
fluid.default_startup_program().random_seed = 7
exe.run(fluid.default_startup_program())
rng = np.random.RandomState(fleet.worker_index())
for step in range(40):
    start = rng.randint(3, size=(16, 1))
    text = start + np.arange(LENGTH)
    places = np.stack([rng.choice(LENGTH, MASKED, replace=False) for _ in range(16)])
    label = np.take_along_axis(text, places, 1).reshape(-1, 1)
    np.put_along_axis(text, places, VOCAB - 1, 1)
    feed = {
        'src_ids': text[:, :, None].astype('int64'),
        'pos_ids': np.tile(np.arange(LENGTH)[None, :, None], (16, 1, 1)).astype('int64'),
        'input_mask': np.ones((16, LENGTH, 1), 'float32'),
        'mask_pos': (places + np.arange(16)[:, None] * LENGTH).reshape(-1, 1).astype('int64'),
        'mask_label': label.astype('int64'),
    }
    value, lr = exe.run(feed=feed, fetch_list=[loss, scheduler])
    print("worker_index: %d, step%d cost = %f, lr = %f" % (fleet.worker_index(), step, value[0], lr[0]))
