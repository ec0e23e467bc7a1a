"""Saving and loading in Paddle's words and in its own files."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from fleetx import static
from fleetx.compat.files import accumulators, pickles, tensors
from fleetx.compat.files.tensors import FormatError
from fleetx.compat.programs import Parameter
from fleetx.compat.scoped import here
from fleetx.compat.scopes import global_scope
from fleetx.io.files import load_tensors, save_tensors
from fleetx.io.values import put, restart_without, training_values, values, whole_values
from fleetx.plan.option import unknown
from fleetx.record.error import ProgramError
from fleetx.record.recording_state import paused
from fleetx.static.run.training import training_of

STATE = ".optimizer.safetensors"
"""Behind the name of what was saved: the exact state of the optimizer and its strategies."""


def is_parameter(var: Any) -> bool:
    """Whether a variable is a parameter, trained or not."""
    return isinstance(var, Parameter)


def is_persistable(var: Any) -> bool:
    """Whether a variable keeps its value between runs."""
    return bool(getattr(var, "persistable", False))


def is_belong_to_optimizer(var: Any) -> bool:
    """Whether a variable is kept by an optimizer."""
    return isinstance(var, _Kept)


class _Kept:
    """What an optimizer keeps for a parameter, as predicates see it."""

    persistable = True

    def __init__(self, name: str) -> None:
        self.name = name


def _program(given: Any) -> static.Program:
    program = static.default_main_program() if given is None else given
    program = getattr(program, "program", program)
    if not isinstance(program, static.Program):
        raise TypeError(f"main_program is a fluid.Program, got {program!r}")
    return here(program)


def _name(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry.name)


# Saving.


def save_persistables(
    executor: Any, dirname: Any, main_program: Any = None, filename: str | None = None
) -> None:
    """Save everything that a program keeps between runs, in Paddle's files.

    Args:
        executor: the one that runs the program.
        dirname: the folder.
        main_program: the default one if None.
        filename: one file for everything; a file named like each variable if None.
    """
    program = _program(main_program)
    kept = training_values(_trainer(program))
    found = {**whole_values(program, "save_persistables"), **accumulators.to_paddle(program, kept)}
    _save(dirname, filename, found)
    state = _state_file(dirname, filename)
    if kept:
        save_tensors(state, kept)
    else:  # of another day, and it would be loaded with these values
        state.unlink(missing_ok=True)


def _trainer(program: static.Program) -> static.Program:
    """The program that moves the optimizer, for ``fleet._origin_program`` that of all workers."""
    training = training_of(program)
    return program if training is None or training.origin is None else training.origin


def save_params(
    executor: Any, dirname: Any, main_program: Any = None, filename: str | None = None
) -> None:
    """Save the parameters alone."""
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def save_vars(  # noqa: PLR0917 (the order of Paddle)
    executor: Any,
    dirname: Any,
    main_program: Any = None,
    vars: Iterable[Any] | None = None,
    predicate: Callable[[Any], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Save the variables that are listed, or for which ``predicate`` is true."""
    program = _program(main_program)
    known = whole_values(program, "save_vars")
    known |= accumulators.to_paddle(program, training_values(program))
    _save(dirname, filename, {n: known[n] for n in _chosen(program, known, vars, predicate)})


def _save(dirname: Any, filename: str | None, found: Mapping[str, Tensor]) -> None:
    if filename is not None:
        tensors.write_all(Path(dirname or ".") / filename, found)
        return
    Path(dirname).mkdir(parents=True, exist_ok=True)
    for name, value in found.items():
        tensors.write(Path(dirname) / name, value)


def _state_file(dirname: Any, filename: str | None) -> Path:
    return Path(dirname or ".") / f"{filename or ''}{STATE}"


def _chosen(
    program: static.Program,
    known: Mapping[str, Any],
    vars: Iterable[Any] | None,
    predicate: Callable[[Any], bool] | None,
) -> list[str]:
    if vars is not None:
        names = [_name(entry) for entry in vars]
        for name in names:
            if name not in known:
                raise ProgramError(unknown(f"the program keeps no {name!r}", name, list(known)))
        return names
    own = values(program)
    seen = {name: program.var(name) if name in own else _Kept(name) for name in known}
    return [name for name, var in seen.items() if predicate is None or predicate(var)]


# Loading.


def load_persistables(
    executor: Any, dirname: Any, main_program: Any = None, filename: str | None = None
) -> None:
    """Load what ``save_persistables`` saved, here or in Paddle itself."""
    program = _program(main_program)
    found = _read(program, dirname, filename)
    _check_complete(program, dirname, found)
    state = _state_file(dirname, filename)
    kept = load_tensors(state) if state.is_file() else accumulators.from_paddle(program, found)
    restart_without(program, kept)
    _put(program, {n: v for n, v in found.items() if n in values(program)} | kept)


def load_params(
    executor: Any, dirname: Any, main_program: Any = None, filename: str | None = None
) -> None:
    """Load the parameters alone."""
    load_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_vars(  # noqa: PLR0917 (the order of Paddle)
    executor: Any,
    dirname: Any,
    main_program: Any = None,
    vars: Iterable[Any] | None = None,
    predicate: Callable[[Any], bool] | None = None,
    filename: str | None = None,
) -> None:
    """Load the variables that are listed, or for which ``predicate`` is true."""
    program = _program(main_program)
    known = dict.fromkeys(values(program))
    chosen = _chosen(program, known, vars, predicate)
    if filename is None:
        found = {name: _one(Path(dirname) / name) for name in chosen}
    else:
        found = _combined(program, Path(dirname or ".") / filename, chosen)
    _put(program, {name: found[name] for name in chosen})


def _read(program: static.Program, dirname: Any, filename: str | None) -> dict[str, Tensor]:
    if filename is not None:
        return _combined(program, Path(dirname or ".") / filename, [])
    folder = Path(dirname)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(dirname)!r} to load from.")
    extra = [name for names in accumulators.names(_moved(program)) for name in names]
    wanted = [*values(program), *extra, accumulators.RATE]
    return {name: _one(folder / name) for name in wanted if (folder / name).is_file()}


def _one(path: Path) -> Tensor:
    """The tensor of a file of Paddle's, or of fleetx's own."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no file {str(path)!r}; was it saved from this network, and into one file "
            "for everything (filename=...)?"
        )
    try:
        return tensors.read(path)
    except FormatError as error:
        try:
            return load_tensors(path)[path.name]
        except (SafetensorError, KeyError):
            raise error from None


def _combined(program: static.Program, path: Path, chosen: list[str]) -> dict[str, Tensor]:
    """One file for everything: Paddle writes no names, but the order of names."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r} to load from.")
    try:
        found = tensors.read_all(path)
    except FormatError as error:
        try:
            return load_tensors(path)
        except SafetensorError:
            raise error from None
    known = values(program)
    trained = _moved(program)
    options = [sorted(chosen)] if chosen else []
    options += [sorted([*known, *more]) for more in accumulators.names(trained)]
    options += [sorted([*known, *more, accumulators.RATE]) for more in accumulators.names(trained)]
    for names in [*options, sorted(program.state.trained()), sorted(trained)]:
        if len(names) == len(found) and all(
            name not in known or _fits(value, known[name])
            for name, value in zip(names, found, strict=True)
        ):
            return dict(zip(names, found, strict=True))
    raise ProgramError(
        f"{str(path)!r} holds {len(found)} tensors without names, and no choice of the program's "
        f"{len(known)} values has these shapes; was it saved from this network?"
    )


def _moved(program: static.Program) -> list[str]:
    """The parameters for which optimizers keep something."""
    return [name for name, value in program.state.trained().items() if value.requires_grad]


def _fits(value: Tensor, target: Tensor) -> bool:
    return value.numel() == target.numel() and list(value.shape) in (
        list(target.shape),
        [],
        [1],
    )


def _check_complete(program: static.Program, dirname: Any, found: Mapping[str, Any]) -> None:
    """Everything that Paddle saves must be there; torch keeps a counter or two more."""
    missing = [name for name in program.state.trained() if name not in found]
    if missing:
        raise FileNotFoundError(
            f"{str(dirname)!r} has no value for {', '.join(missing[:3])}; load what is there with "
            "load_vars(predicate=...), or look whether it was saved from another network."
        )


def _put(program: static.Program, found: Mapping[str, Tensor]) -> None:
    known = values(program)
    shaped = {
        name: value.reshape(known[name].shape)
        if name in known and value.shape != known[name].shape and _fits(value, known[name])
        else value
        for name, value in found.items()
    }
    put(program, shaped)
    for name in known:  # whatever has no file, such as a counter, begins as it does
        initial = program.layers.get(name)
        if initial is not None and name not in found and not initial.done and initial.reset:
            _begin(program, name)


def _begin(program: static.Program, name: str) -> None:
    initial = program.layers[name]
    value = initial.module.get_parameter("value") if hasattr(initial.module, "value") else None
    if value is not None and not value.requires_grad:
        with torch.no_grad():
            initial.draw()
        initial.done = True


# One prefix, several files.


def save(program: Any, model_path: str, protocol: int = 4, **configs: Any) -> None:
    """Write ``<model_path>.pdparams`` and ``.pdopt`` as Paddle does."""
    program = _program(program)
    kept = training_values(program)
    found = whole_values(program, "save")
    pickles.write(f"{model_path}.pdparams", {n: _array(v) for n, v in found.items()})
    named = accumulators.to_paddle(program, kept)
    pickles.write(f"{model_path}.pdopt", {n: _array(v) for n, v in named.items()})
    state = Path(f"{model_path}{STATE}")
    if kept:
        save_tensors(state, kept)
    else:
        state.unlink(missing_ok=True)


def load(
    program: Any, model_path: str, executor: Any = None, var_list: Iterable[Any] | None = None
) -> None:
    """Take back what ``save`` wrote, here or in Paddle: all of it, or the listed variables.

    ``model_path`` may also be a folder of ``save_persistables``.
    """
    program = _program(program)
    prefix = str(model_path)
    for ending in (".pdparams", ".pdopt", ".pdmodel"):
        prefix = prefix.removesuffix(ending)
    if Path(prefix).is_dir() and not Path(f"{prefix}.pdparams").is_file():
        chosen = None if var_list is None else list(var_list)
        if chosen is not None:
            load_vars(executor, prefix, program, vars=chosen)
        else:
            load_persistables(executor, prefix, program)
        return
    found = _by_name(load_program_state(prefix))
    if var_list is not None:
        names = [_name(entry) for entry in var_list]
        _put(program, {name: found[name] for name in names})
        return
    _check_complete(program, prefix, found)
    state = Path(f"{prefix}{STATE}")
    kept = load_tensors(state) if state.is_file() else accumulators.from_paddle(program, found)
    restart_without(program, kept)
    _put(program, {n: v for n, v in found.items() if n in values(program)} | kept)


def load_program_state(
    model_path: str, var_list: Iterable[Any] | None = None
) -> dict[str, np.ndarray]:
    """Name -> array of what ``save`` or ``save_persistables`` wrote."""
    prefix = str(model_path).removesuffix(".pdparams")
    found: dict[str, Any] = {}
    if Path(f"{prefix}.pdparams").is_file():
        found = dict(pickles.read(f"{prefix}.pdparams"))
        if Path(f"{prefix}.pdopt").is_file():
            found |= pickles.read(f"{prefix}.pdopt")
        found.pop(pickles.STRUCTURED, None)
    elif Path(prefix).is_dir():
        files = [path for path in sorted(Path(prefix).iterdir()) if tensors.is_tensor_file(path)]
        found = {path.name: _array(tensors.read(path)) for path in files}
    else:
        raise FileNotFoundError(f"there is no {prefix}.pdparams, and no folder {prefix!r}.")
    if var_list is not None:
        found = {_name(entry): found[_name(entry)] for entry in var_list}
    return found


def set_program_state(program: Any, state_dict: Mapping[str, Any]) -> None:
    """Overwrite values of a program by name; what the program does not have is left out."""
    program = _program(program)
    found = _by_name(state_dict)
    _put(program, {name: value for name, value in found.items() if name in values(program)})
    kept = accumulators.from_paddle(program, found)
    if kept and training_of(program) is not None:
        put(program, kept)


def _by_name(found: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: value.detach() if isinstance(value, Tensor) else torch.as_tensor(np.array(value))
        for name, value in found.items()
        if isinstance(value, (np.ndarray, Tensor, np.generic))
    }


def _array(value: Tensor) -> np.ndarray:
    with paused():
        value = value.detach().cpu()
        found: np.ndarray = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
        return found.copy()


def get_parameter_value(para: Any, executor: Any = None) -> np.ndarray:
    """The numbers of a parameter."""
    return get_parameter_value_by_name(_name(para), executor)


def get_parameter_value_by_name(name: str, executor: Any = None, program: Any = None) -> np.ndarray:
    """The numbers of a parameter by its name."""
    found = global_scope().find_var(name)
    if found is None:
        raise ProgramError(f"there is no parameter {name!r} in the scope.")
    return np.asarray(found)
