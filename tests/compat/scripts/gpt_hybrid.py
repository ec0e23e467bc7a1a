"""A small GPT in eager mode: layers split between two workers."""
import numpy as np
import paddle
import paddle.nn as nn
import paddle.nn.functional as F
from paddle.distributed import fleet
from paddle.distributed.fleet.meta_parallel import (
    ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding)

VOCAB, HIDDEN, HEADS, LENGTH = 32, 16, 2, 8


class Attention(nn.Layer):
    def __init__(self):
        super(Attention, self).__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, weight_attr=paddle.ParamAttr(
            initializer=nn.initializer.Normal(mean=0.0, std=0.1)))
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(p=0.0)

    def forward(self, x):
        qkv = paddle.reshape(self.qkv(x), shape=[0, 0, 3, HEADS, HIDDEN // HEADS])
        qkv = paddle.transpose(qkv, perm=[2, 0, 3, 1, 4])
        q, k, v = qkv[0], qkv[1], qkv[2]
        product = paddle.matmul(q, k, transpose_y=True) * (HIDDEN // HEADS) ** -0.5
        mask = paddle.tensor.triu(
            paddle.full((LENGTH, LENGTH), -1e9, dtype=paddle.get_default_dtype()), diagonal=1)
        weights = self.dropout(F.softmax(product + mask))
        out = paddle.transpose(paddle.matmul(weights, v), perm=[0, 2, 1, 3])
        return self.out(paddle.reshape(out, shape=[0, 0, HIDDEN]))


class Block(nn.Layer):
    def __init__(self):
        super(Block, self).__init__()
        self.norm1 = nn.LayerNorm(HIDDEN, epsilon=1e-5)
        self.norm2 = nn.LayerNorm(HIDDEN, epsilon=1e-5)
        self.attention = Attention()
        self.linear1 = ColumnParallelLinear(HIDDEN, 4 * HIDDEN, gather_output=False, has_bias=True)
        self.linear2 = RowParallelLinear(4 * HIDDEN, HIDDEN, input_is_parallel=True, has_bias=True)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.linear2(F.gelu(self.linear1(self.norm2(x)), approximate=True))


class GPT(nn.Layer):
    def __init__(self):
        super(GPT, self).__init__()
        self.word = VocabParallelEmbedding(VOCAB, HIDDEN)
        self.position = nn.Embedding(LENGTH, HIDDEN)
        self.blocks = nn.LayerList([Block() for _ in range(2)])
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCAB)

    def forward(self, ids):
        positions = paddle.arange(0, LENGTH, dtype='int64')
        x = self.word(ids) + self.position(positions)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


strategy = fleet.DistributedStrategy()
strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 2, "pp_degree": 1}
fleet.init(is_collective=True, strategy=strategy)
hcg = fleet.get_hybrid_communicate_group()
assert hcg.get_model_parallel_world_size() == 2
paddle.seed(7)
np.random.seed(7)

model = GPT()
scheduler = paddle.optimizer.lr.PolynomialDecay(learning_rate=0.01, decay_steps=60, end_lr=0.001)
optimizer = paddle.optimizer.AdamW(
    learning_rate=scheduler, parameters=model.parameters(), weight_decay=0.01,
    grad_clip=nn.ClipGradByGlobalNorm(1.0))
model = fleet.distributed_model(model)
optimizer = fleet.distributed_optimizer(optimizer)
criterion = nn.CrossEntropyLoss()
for step in range(25):
    start = np.random.randint(VOCAB, size=(16, 1))
    text = (start + np.arange(LENGTH + 1)) % VOCAB
    ids, labels = paddle.to_tensor(text[:, :-1]), paddle.to_tensor(text[:, 1:])
    logits = model(ids)
    loss = criterion(logits, labels)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    scheduler.step()
    print("worker_index: %d, step%d cost = %f" % (fleet.worker_index(), step, loss.numpy()))
