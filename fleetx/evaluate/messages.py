"""The messages of the Open Inference Protocol v2, as far as a client needs them."""

from functools import cache

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "int64": _Field.TYPE_INT64,
    "float": _Field.TYPE_FLOAT,
    "double": _Field.TYPE_DOUBLE,
}
_MESSAGES = {
    "InferTensorContents": {
        6: ("fp32_contents", "float", True),
        7: ("fp64_contents", "double", True),
    },
    "Tensor": {
        1: ("name", "string", False),
        2: ("datatype", "string", False),
        3: ("shape", "int64", True),
        5: ("contents", "InferTensorContents", False),
    },
    "ModelInferRequest": {
        1: ("model_name", "string", False),
        5: ("inputs", "Tensor", True),
        7: ("raw_input_contents", "bytes", True),
    },
    "ModelInferResponse": {
        1: ("model_name", "string", False),
        5: ("outputs", "Tensor", True),
        6: ("raw_output_contents", "bytes", True),
    },
    "ModelMetadataRequest": {1: ("name", "string", False)},
    "ModelMetadataResponse": {
        1: ("name", "string", False),
        4: ("inputs", "Tensor", True),
    },
}
"""Message -> number of a field -> its name, its kind, and whether it is repeated.

Fields that are left out are skipped by whoever reads; a tensor of inputs, of outputs and of
metadata has the same first fields.
"""


@cache
def message(name: str) -> type[Message]:
    """The class of a message."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    # One of its own: a server in the same process has registered these names already.
    file = descriptor_pb2.FileDescriptorProto(
        name="fleetx/open_inference.proto", package="inference", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        declared = file.message_type.add(name=name)
        for number, (field, kind, repeated) in fields.items():
            label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            added = declared.field.add(name=field, number=number, label=label)
            if kind in _KINDS:
                added.type = _KINDS[kind]
            else:
                added.type, added.type_name = _Field.TYPE_MESSAGE, f".inference.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool
