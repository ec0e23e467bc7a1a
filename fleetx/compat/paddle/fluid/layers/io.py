"""``paddle.fluid.layers.io``: inputs of a program, and readers that feed them."""

from collections.abc import Sequence
from typing import Any

from fleetx.compat import modes, unique_names
from fleetx.compat.dtypes import convert_dtype
from fleetx.compat.loaders import GeneratorLoader
from fleetx.compat.lods import fed_sizes, input_name, with_lod
from fleetx.compat.notes import note
from fleetx.record.variable import Variable
from fleetx.static.record import inputs
from fleetx.static.record.current import default_main_program
from fleetx.static.run import readers


def declared(
    name: str, shape: Sequence[Any], dtype: Any, lod_level: int = 0, *, binding: bool = True
) -> Variable:
    """An input; one that the program has already, if it is the same.

    Sizes that are not ``binding`` say what a script computes with, and other ones may be fed.
    """
    modes.enable_static()
    program = default_main_program()
    called, name = name, input_name(name)
    # Scripts multiply sizes: ``batch * length`` is below -1 where the batch is -1.
    given = [None if size is None or size < 0 else int(size) for size in shape]
    sizes = fed_sizes(program, given, lod_level)
    kind = convert_dtype(dtype or "float32")
    if name in program.inputs():
        known = program.var(name)
        if tuple(known.node.meta["shape"]) == tuple(sizes) and convert_dtype(known.dtype) == kind:
            return known
    made = inputs.data(name, sizes, kind)
    made.node.meta["binding"] = binding
    if called != name:
        program.names[called] = made.node
    vars(made)["_paddle_lod_level"] = lod_level
    return with_lod(made, lod_level)


def data(  # noqa: PLR0917
    name: str,
    shape: Sequence[Any],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
) -> Variable:
    """An input, with a dimension for the batch before the others."""
    free = any(size is None or size < 0 for size in shape)
    sizes = [None, *shape] if append_batch_size and not free else list(shape)
    made = declared(name, sizes, dtype, lod_level, binding=False)
    if not stop_gradient:
        made.stop_gradient = False
    return made


def py_reader(  # noqa: PLR0917
    capacity: int,
    shapes: Sequence[Sequence[Any]],
    dtypes: Sequence[Any],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> Any:
    """A reader that declares its own inputs; ``read_file`` gives them."""
    modes.enable_static()
    stem = (name or unique_names.generate("create_py_reader")).replace(".", "_")
    levels = lod_levels or [0] * len(shapes)
    parts = zip(shapes, dtypes, levels, strict=True)
    made = [declared(f"{stem}_{at}", *part, binding=False) for at, part in enumerate(parts)]
    return create_py_reader_by_data(capacity, made, name, use_double_buffer)


def create_py_reader_by_data(
    capacity: int,
    feed_list: Sequence[Any],
    name: str | None = None,
    use_double_buffer: bool = True,
) -> Any:
    """A reader that feeds inputs."""
    ahead = int(capacity) if use_double_buffer else 1
    return GeneratorLoader(list(feed_list), capacity=ahead, iterable=False, drop_last=False)


def read_file(reader: Any) -> Any:
    """The inputs that a reader feeds: one variable, or a list of them."""
    return readers.read_file(reader)


def double_buffer(reader: Any, place: Any = None, name: str | None = None) -> Any:
    """The reader, which reads ahead anyway."""
    note("double_buffer", "readers read ahead by their capacity")
    return reader
