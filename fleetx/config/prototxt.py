"""Strategies in protobuf's text format, in the files that Paddle's Fleet reads and writes.

The schema is built from the option dataclasses; Paddle's field numbers decide the order of lines.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import Message

from fleetx.config.job_options import JobOptions
from fleetx.config.old_spellings import KEYS
from fleetx.config.paddle_fields import FIRST_OF_OURS, IDLE, NUMBERS
from fleetx.config.switchboard import blocks, switches
from fleetx.plan.option import Config, annotations, plain_type, unknown

_MODES = {"collective": "COLLECTIVE", "ps": "PS"}

_Field = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    bool: _Field.TYPE_BOOL,
    int: _Field.TYPE_INT64,
    # Paddle declares 32 bits; 64 print the same digits and keep what the user wrote.
    float: _Field.TYPE_DOUBLE,
    str: _Field.TYPE_STRING,
}


def dump(explicit: Mapping[str, Any]) -> str:
    """The text for what was set by hand."""
    message = _message_class()()
    for name, value in explicit.items():
        if isinstance(value, Mapping):
            getattr(message, name).SetInParent()
            for key, item in value.items():
                _put(getattr(message, name), key, item)
        else:
            _put(message, name, _MODES.get(value, value) if name == "mode" else value)
    return str(message)


def load(path: Path) -> dict[str, Any]:
    """What the file sets: switches, options and blocks by name."""
    message = _message_class()()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), message)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a strategy that fleetx can read: {_why(error)}") from None
    found = _as_dict(message)
    for block, fields in IDLE.items():
        for name, normal in fields.items():
            if found.get(block, {}).pop(name, normal) != normal:
                raise ValueError(
                    f"{path} sets {block}[{name!r}], for which there is nothing here, so it would "
                    f"be ignored; leave it at {normal!r}"
                )
    return found


def _put(message: Message, name: str, value: Any) -> None:
    if isinstance(value, tuple):
        getattr(message, name).extend(value)
    elif (words := message.DESCRIPTOR.fields_by_name[name].enum_type) is not None:
        setattr(message, name, words.values_by_name[value].number)
    else:
        setattr(message, name, value)


def _as_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.enum_type is not None:
            found[field.name] = field.enum_type.values_by_number[value].name
        elif isinstance(value, Message):
            found[field.name] = _as_dict(value)
        else:
            found[field.name] = list(value) if field.is_repeated else value
    return found


def _why(error: Exception) -> str:
    """The parser's complaint, with the nearest name when a field is unknown."""
    text = str(error)
    match = re.search(r'Message type "[\w.]*?(\w+)" has no field named "(\w+)"', text)
    if match is None:
        return text
    owner, name = match.groups()
    known = _message_class().DESCRIPTOR.file.message_types_by_name[owner].fields_by_name
    line = text.split(":", 1)[0]
    return unknown(f"line {line}: {_spelled(owner)} has no field {name!r}", name, list(known))


def _message_class() -> type[Message]:
    file = descriptor_pb2.FileDescriptorProto(
        name="fleetx/distributed_strategy.proto", package="paddle.fleet", syntax="proto2"
    )
    root = file.message_type.add(name="DistributedStrategy")
    _declare_mode(file, root)
    _declare_scalars(root)
    for name, config in blocks().items():
        message = file.message_type.add(name=_message_name(name))
        _declare_block(message, _fields(name, config))
        kind = f".paddle.fleet.{_message_name(name)}"
        number = _number(name, root, "block")
        root.field.add(
            name=name,
            number=number,
            label=_Field.LABEL_OPTIONAL,
            type=_Field.TYPE_MESSAGE,
            type_name=kind,
        )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName("paddle.fleet.DistributedStrategy")
    return message_factory.GetMessageClass(descriptor)


def _declare_mode(
    file: descriptor_pb2.FileDescriptorProto, root: descriptor_pb2.DescriptorProto
) -> None:
    mode = file.enum_type.add(name="Mode")
    for number, word in enumerate(("COLLECTIVE", "PS", "PIPELINE", "HETER"), 1):
        mode.value.add(name=word, number=number)
    root.field.add(
        name="mode",
        number=NUMBERS["mode"],
        label=_Field.LABEL_OPTIONAL,
        type=_Field.TYPE_ENUM,
        type_name=".paddle.fleet.Mode",
    )


def _declare_scalars(root: descriptor_pb2.DescriptorProto) -> None:
    kinds: dict[str, Any] = dict.fromkeys(switches(), bool) | annotations(JobOptions)
    for name, annotation in kinds.items():
        if name != "mode":
            _declare(root, name, _number(name, root, "scalar"), annotation)


def _fields(block: str, config: type[Config]) -> dict[str, Any]:
    """The options of today, their older names, and what Paddle alone knows; with their types."""
    today = annotations(config)
    older = {old: today[new] for old, new in KEYS.get(block, {}).items()}
    return today | older | dict.fromkeys(IDLE.get(block, {}), int)


def _declare_block(message: descriptor_pb2.DescriptorProto, fields: Mapping[str, Any]) -> None:
    for number, (name, annotation) in enumerate(fields.items(), 1):
        _declare(message, name, number, annotation)


def _declare(
    message: descriptor_pb2.DescriptorProto, name: str, number: int, annotation: Any
) -> None:
    kind = plain_type(annotation)
    many = get_origin(kind) is tuple
    message.field.add(
        name=name,
        number=number,
        label=_Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL,
        type=_TYPES[get_args(kind)[0] if many else kind],
    )


def _number(name: str, root: descriptor_pb2.DescriptorProto, kind: str) -> int:
    if name in NUMBERS:
        return NUMBERS[name]
    taken = {field.number for field in root.field}
    number = FIRST_OF_OURS[kind]
    while number in taken:
        number += 1
    return number


def _message_name(block: str) -> str:
    return "".join(word.capitalize() for word in block.split("_"))


def _spelled(message_name: str) -> str:
    by_message = {_message_name(name): name for name in blocks()}
    return by_message.get(message_name, message_name)
