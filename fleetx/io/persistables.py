"""Everything of a program that lives between runs: parameters, buffers, state of the optimizer."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from fleetx.api.session import may_save
from fleetx.expected import PATH, expect
from fleetx.io.files import Folder, load_tensors, one_each, save_tensors
from fleetx.io.training_state import MARK
from fleetx.io.values import everything, put, restart_without, values, whole_values
from fleetx.record.error import ProgramError
from fleetx.record.variable import as_variable
from fleetx.static.record.current import default_main_program
from fleetx.static.record.program import Program
from fleetx.static.run.compiled import CompiledProgram
from fleetx.static.run.executor import Executor

Predicate = Callable[[Any], bool]


class Kept:
    """Something that an optimizer keeps, as predicates see it."""

    persistable = True

    def __init__(self, name: str) -> None:
        self.name = name


def save_persistables(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save parameters, buffers and the state of the optimizer and its strategies.

    Every worker that calls it writes everything; one of them is enough, unless strategies spread
    parameters over workers: then all of them call it, each with its own folder or with one.

    Args:
        executor: the one that runs the program.
        dirname: the folder; it is made if it does not exist.
        main_program: the default one if None.
        filename: one file for everything; a file of its own name for each variable if None. What
            an earlier save left there of an optimizer is taken away.
    """
    program = checked("save_persistables", executor, dirname, main_program)
    found = everything(program, "save_persistables")
    _save(dirname, filename, found)
    if filename is None and may_save():
        _remove_stale(Path(dirname), found)


def save_params(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Save the parameters alone."""
    program = checked("save_params", executor, dirname, main_program)
    save_vars(executor, dirname, program, vars=list(program.state.trained()), filename=filename)


def save_vars(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    *,
    vars: Iterable[Tensor | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Save the variables that are listed, or for which ``predicate`` is true."""
    program = checked("save_vars", executor, dirname, main_program)
    names = None if vars is None else [name_of(entry) for entry in vars]
    if names is not None and values(program).keys() >= set(names):
        known = whole_values(program, "save_vars")
    else:
        known = everything(program, "save_vars")
    chosen = _chosen(program, known, names, predicate)
    _save(dirname, filename, {name: known[name] for name in chosen})


def load_persistables(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load what ``save_persistables`` saved; training goes on as if it had not stopped.

    What was saved before the first run has no state of an optimizer, which begins anew.

    Args:
        executor: the one that runs the program.
        dirname: the folder; without ``filename``, only files with names of values are read.
        main_program: the default one if None.
        filename: the one file that holds everything, if it was saved so.
    """
    program = checked("load_persistables", executor, dirname, main_program)
    found = _found(program, dirname, filename)
    if missing := [name for name in values(program) if name not in found]:
        raise FileNotFoundError(
            f"{str(dirname)!r} has no value for {', '.join(missing[:3])}; load what is there with "
            "load_vars(predicate=…), or look whether it was saved from another program."
        )
    restart_without(program, found)
    put(program, found)


def load_params(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    filename: str | None = None,
) -> None:
    """Load the parameters alone."""
    program = checked("load_params", executor, dirname, main_program)
    load_vars(executor, dirname, program, vars=list(program.state.trained()), filename=filename)


def load_vars(
    executor: Executor,
    dirname: Folder,
    main_program: Program | None = None,
    *,
    vars: Iterable[Tensor | str] | None = None,
    predicate: Predicate | None = None,
    filename: str | None = None,
) -> None:
    """Load the variables that are listed, or for which ``predicate`` is true.

    Args:
        executor: the one that runs the program.
        dirname: the folder.
        main_program: the default one if None.
        vars: variables by object or by name.
        predicate: asked about every persistable variable, when ``vars`` is None.
        filename: the one file that holds everything, if there is one.
    """
    program = checked("load_vars", executor, dirname, main_program)
    known = values(program)
    if filename is not None:
        found = load_tensors(Path(dirname) / filename)
        known = known | {name: found[name] for name in found if MARK in name}
    chosen = _chosen(program, known, vars, predicate)
    if filename is None:
        found = {}
        for name in chosen:
            found |= load_tensors(Path(dirname) / name)
    if missing := [name for name in chosen if name not in found]:
        raise FileNotFoundError(f"{filename!r} has no value for {', '.join(missing[:3])}.")
    put(program, {name: found[name] for name in chosen})


def checked(call: str, executor: object, dirname: object, program: object) -> Program:
    """The program to save or load; refuses what is none, or has no place."""
    if not isinstance(executor, Executor):
        raise TypeError(
            f"{call}() takes a static.Executor first, and saves or loads the values of a program; "
            f"got {executor!r}. For a module use fleetx.io.save_checkpoint() and load_checkpoint()."
        )
    expect(call, "dirname", dirname, PATH)
    program = default_main_program() if program is None else program
    if isinstance(program, CompiledProgram):
        program = program.program
    if not isinstance(program, Program):
        raise TypeError(f"main_program is a static.Program, got {program!r}")
    return program


def name_of(entry: Tensor | str) -> str:
    """The name of a variable that is given by object or by name."""
    return entry if isinstance(entry, str) else as_variable(entry, "vars").name


def _chosen(
    program: Program,
    known: Mapping[str, Tensor],
    vars: Iterable[Tensor | str] | None,
    predicate: Predicate | None,
) -> list[str]:
    if vars is not None:
        names = [name_of(entry) for entry in vars]
        for name in names:
            if name not in known:
                raise ProgramError(f"{name!r} is no persistable variable of the program.")
        return names
    if predicate is None:
        return list(known)
    own = values(program)
    seen = {name: program.var(name) if name in own else Kept(name) for name in known}
    return [name for name, variable in seen.items() if predicate(variable)]


def _save(dirname: Folder, filename: str | None, tensors: Mapping[str, Tensor]) -> None:
    if filename is None:
        one_each(dirname, tensors)
    else:
        save_tensors(Path(dirname) / filename, tensors)


def _remove_stale(folder: Path, found: Mapping[str, Tensor]) -> None:
    """Take away what an optimizer of another day kept, which would be loaded with these values."""
    for path in folder.iterdir():
        if path.name not in found and _is_state(path.name, found):
            path.unlink(missing_ok=True)  # several workers may write into one folder


def _found(program: Program, dirname: Folder, filename: str | None) -> dict[str, Tensor]:
    if filename is not None:
        return load_tensors(Path(dirname) / filename)
    folder, known = Path(dirname), values(program)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(dirname)!r} to load from.")
    # Other things may lie there: everything in one file, of another day, or a note.
    paths = {path.name: path for path in sorted(folder.iterdir()) if path.is_file()}
    return {n: _own(path) for n, path in paths.items() if n in known or _is_state(n, known)}


def _is_state(name: str, known: Mapping[str, Tensor]) -> bool:
    """Whether a file has the name of what an optimizer or a strategy keeps for these values."""
    owner, mark, _ = name.partition(MARK)
    return bool(mark) and (not owner or owner in known)


def _own(path: Path) -> Tensor:
    """The one tensor of a file that has its name."""
    try:
        found = load_tensors(path)
    except SafetensorError as error:
        raise ValueError(
            f"{str(path)!r} has the name of a value, but is no safetensors file ({error}); take it "
            "away, or save the program again."
        ) from error
    if found.keys() != {path.name}:
        raise ValueError(
            f"{str(path)!r} has the name of one value, but holds {', '.join([*found][:3])}; if it "
            "is one file for everything, name it by filename."
        )
    return found[path.name]
