"""A click model of embeddings and layers, and its data."""
import numpy as np
import paddle.fluid as fluid

SLOTS = 3
IDS = 50
DENSE = 4


def ctr_dnn_model(embedding_size=8):
    dense_input = fluid.layers.data(name="dense_input", shape=[DENSE], dtype='float32')
    sparse_input_ids = [
        fluid.layers.data(name="C" + str(i), shape=[1], lod_level=1, dtype='int64')
        for i in range(1, SLOTS + 1)
    ]
    label = fluid.layers.data(name='label', shape=[1], dtype='int64')

    def embedding_layer(input):
        emb = fluid.layers.embedding(
            input=input, is_sparse=True, size=[IDS, embedding_size],
            param_attr=fluid.ParamAttr(
                name="SparseFeatFactors", initializer=fluid.initializer.Uniform()))
        return fluid.layers.sequence_pool(input=emb, pool_type='sum')

    sparse_embed_seq = list(map(embedding_layer, sparse_input_ids))
    concated = fluid.layers.concat(sparse_embed_seq + [dense_input], axis=1)
    fc1 = fluid.layers.fc(
        input=concated, size=16, act='relu',
        param_attr=fluid.ParamAttr(initializer=fluid.initializer.Normal(scale=1 / np.sqrt(16.0))))
    predict = fluid.layers.fc(input=fc1, size=2, act='softmax')
    cost = fluid.layers.cross_entropy(input=predict, label=label)
    avg_cost = fluid.layers.reduce_sum(cost)
    auc_var, batch_auc_var, _ = fluid.layers.auc(
        input=predict, label=label, num_thresholds=2 ** 12, slide_steps=20)
    return avg_cost, auc_var, batch_auc_var, [dense_input] + sparse_input_ids + [label]


def samples(number, seed):
    """Lines that a click log would have: the first slot's ids below 25 click."""
    rng = np.random.RandomState(seed)
    for _ in range(number):
        dense = [float(v) for v in rng.rand(DENSE).astype('float32')]
        slots = [[int(v) for v in rng.randint(IDS, size=rng.randint(1, 3))] for _ in range(SLOTS)]
        yield [dense] + slots + [[int(slots[0][0] < IDS // 2)]]
