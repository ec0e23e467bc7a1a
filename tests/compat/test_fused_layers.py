"""Layers that Paddle computes in one kernel, and losses whose classes workers share."""

import math

import numpy as np
import pytest
import torch


@pytest.mark.parametrize("before", [False, True])
def test_a_fused_layer_of_an_encoder_is_the_plain_one(before: bool) -> None:
    import paddle
    from paddle import nn
    from paddle.incubate.nn import FusedTransformerEncoderLayer

    plain = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu", normalize_before=before)
    fused = FusedTransformerEncoderLayer(8, 2, 12, 0.0, "gelu", normalize_before=before)
    attention, own = plain.self_attn, fused.fused_attn
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    norm = "pre_ln" if before else "ln"
    with torch.no_grad():
        own.qkv_weight.set_value(
            torch.stack([p.weight.t().reshape(2, 4, 8) for p in parts]).detach()
        )
        own.qkv_bias.set_value(torch.stack([p.bias.reshape(2, 4) for p in parts]).detach())
        for mine, theirs in (
            (own.linear_weight, attention.out_proj.weight),
            (own.linear_bias, attention.out_proj.bias),
            (getattr(own, f"{norm}_scale"), plain.norm1.weight),
            (getattr(own, f"{norm}_bias"), plain.norm1.bias),
            (fused.ffn._linear1_weight, plain.linear1.weight),
            (fused.ffn._linear1_bias, plain.linear1.bias),
            (fused.ffn._linear2_weight, plain.linear2.weight),
            (fused.ffn._linear2_bias, plain.linear2.bias),
        ):
            mine.copy_(theirs)
    x = paddle.rand([2, 5, 8])
    mask = paddle.tril(paddle.ones([5, 5])) == 1
    assert np.allclose(fused(x, mask).numpy(), plain(x, mask).numpy(), atol=1e-5)


def test_fused_functions_are_their_parts() -> None:
    import paddle
    from paddle.incubate.nn import FusedBiasDropoutResidualLayerNorm, FusedDropoutAdd, FusedLinear
    from paddle.incubate.nn import functional as F

    x, y = paddle.rand([3, 4]), paddle.rand([3, 4])
    turned = FusedLinear(4, 2, transpose_weight=True)
    assert np.allclose(turned(x).numpy(), (x @ turned.weight.t() + turned.bias).numpy(), atol=1e-6)
    assert np.allclose(FusedDropoutAdd(0.0)(x, y).numpy(), (x + y).numpy())
    layer = FusedBiasDropoutResidualLayerNorm(4, 0.0)
    wanted = paddle.nn.functional.layer_norm(x + y, [4])
    assert np.allclose(layer(x, y).numpy(), wanted.numpy(), atol=1e-5)
    weight = paddle.rand([4, 4])
    found = F.fused_linear_activation(x, weight, trans_y=True, activation="relu")
    assert np.allclose(found.numpy(), paddle.nn.functional.relu(x @ weight.t()).numpy(), atol=1e-6)
    with pytest.raises(ValueError, match="cuts a fused layer"):
        F.fused_feedforward(x, weight, weight, ring_id=0)


def test_the_true_class_is_moved_by_margins() -> None:
    import paddle
    from paddle.nn import functional as F

    cosines = np.array([[0.5, -0.2, 0.1], [0.0, 0.3, 0.9]], "float32")
    labels = paddle.to_tensor([0, 2])
    loss, softmax = F.margin_cross_entropy(
        paddle.to_tensor(cosines),
        labels,
        margin1=1.0,
        margin2=0.5,
        margin3=0.1,
        scale=4.0,
        return_softmax=True,
        reduction=None,
    )
    moved = cosines.copy()
    for row, at in enumerate((0, 2)):
        moved[row, at] = math.cos(math.acos(cosines[row, at]) + 0.5) - 0.1
    powers = np.exp(4.0 * moved)
    wanted = powers / powers.sum(1, keepdims=True)
    assert np.allclose(softmax.numpy(), wanted, atol=1e-5)
    assert np.allclose(loss.numpy().ravel(), -np.log(wanted[[0, 1], [0, 2]]), atol=1e-5)


def test_sampled_classes_hold_those_of_the_batch() -> None:
    import paddle
    from paddle.nn import functional as F

    places, sampled = F.class_center_sample(paddle.to_tensor([7, 3, 3]), 10, 5)
    assert sampled.numpy()[:2].tolist() == [3, 7]
    assert len(set(sampled.numpy().tolist())) == 5
    assert places.numpy().tolist() == [1, 0, 0]


def test_operations_are_counted_as_paddle_counts_them() -> None:
    import paddle

    assert paddle.flops(paddle.vision.models.LeNet(), [1, 1, 28, 28]) == 347560
    assert paddle.flops(paddle.vision.models.resnet18(), [1, 3, 64, 64]) == 148965888
    assert paddle.finfo("float16").max == 65504.0
    assert paddle.iinfo(paddle.int8).max == 127
    with paddle.LazyGuard():
        assert list(paddle.nn.Linear(2, 2).weight.shape) == [2, 2]
