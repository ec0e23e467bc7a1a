"""Layers for scripts that write a program line by line: ``static.nn.fc`` and its like.

They are modules of ``torch.nn``, so strategies find them, with torch's first values. Any function
or module of torch works on variables as well; these only make the module where it is used.
"""

from fleetx.static.layers.functions import cross_entropy, dropout, prelu
from fleetx.static.layers.images import conv2d, conv2d_transpose, pool2d
from fleetx.static.layers.linear import create_parameter, fc
from fleetx.static.layers.norms import batch_norm, group_norm, instance_norm, layer_norm
from fleetx.static.layers.parameters import ParamAttr
from fleetx.static.layers.tables import embedding, sparse_embedding

__all__ = [
    "ParamAttr",
    "batch_norm",
    "conv2d",
    "conv2d_transpose",
    "create_parameter",
    "cross_entropy",
    "dropout",
    "embedding",
    "fc",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "pool2d",
    "prelu",
    "sparse_embedding",
]
