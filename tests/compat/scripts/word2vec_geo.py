"""Skip-gram with sampled words on parameter servers, which meet the workers every few batches."""
import numpy as np
import paddle
import paddle.fluid as fluid
import paddle.fluid.incubate.fleet.base.role_maker as role_maker
from paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler import fleet
from paddle.fluid.transpiler.distribute_transpiler import DistributeTranspilerConfig

DICT_SIZE, EMBEDDING, NEG = 40, 8, 3
BATCH = 32


def skip_gram_word2vec():
    input_word = fluid.layers.data(name="input_word", shape=[1], dtype='int64')
    true_word = fluid.layers.data(name='true_label', shape=[1], dtype='int64')
    neg_word = fluid.layers.data(name="neg_label", shape=[NEG], dtype='int64')
    init_width = 0.5 / EMBEDDING
    input_emb = fluid.layers.embedding(
        input=input_word, is_sparse=True, size=[DICT_SIZE, EMBEDDING],
        param_attr=fluid.ParamAttr(
            name='emb', initializer=fluid.initializer.Uniform(-init_width, init_width)))
    true_emb_w = fluid.layers.embedding(
        input=true_word, is_sparse=True, size=[DICT_SIZE, EMBEDDING],
        param_attr=fluid.ParamAttr(name='emb_w', initializer=fluid.initializer.Constant(value=0.0)))
    true_emb_b = fluid.layers.embedding(
        input=true_word, is_sparse=True, size=[DICT_SIZE, 1],
        param_attr=fluid.ParamAttr(name='emb_b', initializer=fluid.initializer.Constant(value=0.0)))
    input_emb = fluid.layers.reshape(input_emb, shape=[-1, EMBEDDING])
    true_emb_w = fluid.layers.reshape(true_emb_w, shape=[-1, EMBEDDING])
    true_emb_b = fluid.layers.reshape(true_emb_b, shape=[-1, 1])
    neg_word_reshape = fluid.layers.reshape(neg_word, shape=[-1, 1])
    neg_word_reshape.stop_gradient = True
    neg_emb_w = fluid.layers.embedding(
        input=neg_word_reshape, is_sparse=True, size=[DICT_SIZE, EMBEDDING],
        param_attr=fluid.ParamAttr(name='emb_w', learning_rate=1.0))
    neg_emb_w_re = fluid.layers.reshape(neg_emb_w, shape=[-1, NEG, EMBEDDING])
    neg_emb_b = fluid.layers.embedding(
        input=neg_word_reshape, is_sparse=True, size=[DICT_SIZE, 1],
        param_attr=fluid.ParamAttr(name='emb_b', learning_rate=1.0))
    neg_emb_b_vec = fluid.layers.reshape(neg_emb_b, shape=[-1, NEG])
    true_logits = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(
            fluid.layers.elementwise_mul(input_emb, true_emb_w), dim=1, keep_dim=True),
        true_emb_b)
    input_emb_re = fluid.layers.reshape(input_emb, shape=[-1, 1, EMBEDDING])
    neg_matmul = fluid.layers.matmul(input_emb_re, neg_emb_w_re, transpose_y=True)
    neg_logits = fluid.layers.elementwise_add(
        fluid.layers.reshape(neg_matmul, shape=[-1, NEG]), neg_emb_b_vec)
    label_ones = fluid.layers.fill_constant_batch_size_like(
        true_logits, shape=[-1, 1], value=1.0, dtype='float32')
    label_zeros = fluid.layers.fill_constant_batch_size_like(
        true_logits, shape=[-1, NEG], value=0.0, dtype='float32')
    true_xent = fluid.layers.sigmoid_cross_entropy_with_logits(true_logits, label_ones)
    neg_xent = fluid.layers.sigmoid_cross_entropy_with_logits(neg_logits, label_zeros)
    cost = fluid.layers.elementwise_add(
        fluid.layers.reduce_sum(true_xent, dim=1), fluid.layers.reduce_sum(neg_xent, dim=1))
    return fluid.layers.reduce_mean(cost), [input_word, true_word, neg_word]


def word_pairs(seed):
    rng = np.random.RandomState(seed)
    for _ in range(BATCH * 40):
        word = rng.randint(DICT_SIZE)
        yield [word], [(word + 1) % DICT_SIZE], rng.randint(DICT_SIZE, size=NEG).tolist()


fleet.init(role_maker.PaddleCloudRoleMaker())
avg_cost, inputs = skip_gram_word2vec()
config = DistributeTranspilerConfig()
config.sync_mode = False
config.geo_sgd_mode = True
config.geo_sgd_need_push_nums = 4
optimizer = fluid.optimizer.SGD(learning_rate=fluid.layers.exponential_decay(
    learning_rate=4.0, decay_steps=100, decay_rate=0.999, staircase=True))
optimizer = fleet.distributed_optimizer(optimizer, config)
optimizer.minimize(avg_cost)

if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
else:
    fleet.init_worker()
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    feeder = fluid.DataFeeder(feed_list=inputs, place=fluid.CPUPlace())
    reader = paddle.batch(lambda: word_pairs(fleet.worker_index()), batch_size=BATCH, drop_last=True)
    for batch_id, data in enumerate(reader()):
        loss, = exe.run(fleet.main_program, feed=feeder.feed(data), fetch_list=[avg_cost])
        print("worker_index: %d, step%d cost = %f" % (fleet.worker_index(), batch_id, loss[0]))
    fleet.stop_worker()
