"""``paddle.nn``: layers."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "parameters": "ParamAttr",
        "paddle.nn.layer.layers": "Layer",
        "paddle.nn.layer.activation": (
            "ReLU ReLU6 GELU Sigmoid Tanh Softmax LogSoftmax LeakyReLU ELU SELU Silu Swish Mish "
            "Hardswish Hardsigmoid Hardtanh Softplus Softsign LogSigmoid PReLU CELU "
            "GLU Hardshrink Softshrink Tanhshrink ThresholdedReLU Maxout RReLU Softmax2D"
        ),
        "paddle.nn.layer.common": (
            "Identity Linear Embedding Dropout Dropout2D Dropout3D AlphaDropout Flatten Pad1D "
            "Pad2D Pad3D ZeroPad2D CosineSimilarity Upsample Bilinear Pad2d=Pad2D"
        ),
        "paddle.nn.layer.container": "Sequential LayerList LayerDict ParameterList",
        "paddle.nn.layer.conv": (
            "Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose Conv1d=Conv1D "
            "Conv2d=Conv2D Conv3d=Conv3D ConvTranspose2d=Conv2DTranspose"
        ),
        "paddle.nn.layer.loss": (
            "CrossEntropyLoss MSELoss L1Loss SmoothL1Loss NLLLoss BCELoss BCEWithLogitsLoss "
            "KLDivLoss MarginRankingLoss CTCLoss CosineEmbeddingLoss GaussianNLLLoss "
            "PoissonNLLLoss HingeEmbeddingLoss MultiLabelSoftMarginLoss MultiMarginLoss "
            "SoftMarginLoss TripletMarginLoss TripletMarginWithDistanceLoss"
        ),
        "paddle.nn.layer.vision": (
            "PixelShuffle PixelUnshuffle ChannelShuffle Fold Unfold Unflatten PairwiseDistance "
            "UpsamplingNearest2D UpsamplingBilinear2D"
        ),
        "paddle.nn.layer.norm": (
            "BatchNorm BatchNorm1D BatchNorm2D BatchNorm3D SyncBatchNorm LayerNorm GroupNorm "
            "InstanceNorm1D InstanceNorm2D InstanceNorm3D LocalResponseNorm "
            "BatchNorm1d=BatchNorm1D BatchNorm2d=BatchNorm2D BatchNorm3d=BatchNorm3D"
        ),
        "paddle.nn.layer.pooling": (
            "MaxPool1D MaxPool2D MaxPool3D AvgPool1D AvgPool2D AvgPool3D AdaptiveAvgPool1D "
            "AdaptiveAvgPool2D AdaptiveAvgPool3D AdaptiveMaxPool1D AdaptiveMaxPool2D "
            "AdaptiveMaxPool3D MaxPool2d=MaxPool2D AvgPool2d=AvgPool2D "
            "AdaptiveAvgPool2d=AdaptiveAvgPool2D"
        ),
        "paddle.nn.layer.rnn": (
            "RNNCellBase SimpleRNNCell LSTMCell GRUCell RNN BiRNN SimpleRNN LSTM GRU"
        ),
        "paddle.nn.layer.transformer": (
            "MultiHeadAttention TransformerEncoderLayer TransformerEncoder "
            "TransformerDecoderLayer TransformerDecoder Transformer"
        ),
        "paddle.nn.clip": "ClipGradByGlobalNorm ClipGradByNorm ClipGradByValue",
        "paddle.fluid.layers.linear": "fc embedding",
        "paddle.fluid.layers.decoding": "BeamSearchDecoder dynamic_decode",
    },
    modules=["clip", "functional", "initializer", "layer", "loss", "utils"],
)
