"""Models for use without training: saved as fleetx saves them, with weights in Paddle's files."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleetx import io as fleetx_io
from fleetx import static
from fleetx.compat import foreign_models, lods
from fleetx.compat.files import model_files, tensors
from fleetx.compat.notes import note
from fleetx.compat.programs import Program, ours
from fleetx.compat.recorded import BY_NUMBERS
from fleetx.compat.scoped import here
from fleetx.io.values import values
from fleetx.record.error import ProgramError
from fleetx.static.run.slot_feeds import OFFSETS

MODEL = "__model__"


def save_inference_model(  # noqa: PLR0917 (the order of Paddle)
    dirname: Any,
    feeded_var_names: Sequence[Any],
    target_vars: Sequence[Any],
    executor: Any,
    main_program: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Save what leads from the feeds to the targets, weights included.

    The model is a file called ``model_filename`` or ``__model__`` inside of ``dirname``; the
    weights are beside it too, in Paddle's files.
    """
    program = _program(main_program)
    names = _written(
        executor,
        Path(dirname) / (model_filename or MODEL),
        program,
        feeded_var_names,
        target_vars,
        export_for_deployment,
    )
    if not program_only:
        _weights(program, Path(dirname), params_filename, names[0])
    return names[1]


def save_2(
    path_prefix: str,
    feed_vars: Any,
    fetch_vars: Any,
    executor: Any,
    program: Any = None,
    **configs: Any,
) -> None:
    """``paddle.static.save_inference_model``: files ``<prefix>.pdmodel`` and ``.pdiparams``."""
    for name in ("clip_extra", "legacy_format"):
        if configs.pop(name, None) is not None:
            note(f"save_inference_model({name}=…)", "it is about Paddle's own format of models.")
    if configs:
        raise TypeError(f"save_inference_model() has no option {', '.join(configs)}")
    found, prefix = _program(program or _owner(fetch_vars)), Path(path_prefix)
    feeds = feed_vars if isinstance(feed_vars, (list, tuple)) else [feed_vars]
    targets = fetch_vars if isinstance(fetch_vars, (list, tuple)) else [fetch_vars]
    model = prefix.with_name(f"{prefix.name}.pdmodel")
    used, _ = _written(executor, model, found, feeds, targets, True)
    _weights(found, prefix.parent, f"{prefix.name}.pdiparams", used)


def _owner(fetches: Any) -> Any:
    first = fetches[0] if isinstance(fetches, (list, tuple)) else fetches
    return getattr(first, "program", None)


def _program(given: Any) -> Program:
    found = static.default_main_program() if given is None else getattr(given, "program", given)
    if not isinstance(found, static.Program):
        raise TypeError(f"main_program is a fluid.Program, got {found!r}")
    return here(found)


def _written(  # noqa: PLR0917
    executor: Any, path: Path, program: Program, feeds: Any, targets: Any, deployed: bool
) -> tuple[list[str], list[str]]:
    pruned, needed, targets = arranged(program, feeds, targets)
    path.parent.mkdir(parents=True, exist_ok=True)
    _kept.pop(path.resolve(), None)
    if any(node.meta.get(BY_NUMBERS) for node in pruned.graph.nodes):
        return list(values(pruned)), _keep(path, pruned, needed, targets)
    with model_files.written(path) as folder:
        outputs = fleetx_io.save_inference_model(
            executor, folder, needed, targets, program, deployed
        )
    return list(values(pruned)), outputs


def arranged(
    program: static.Program, feeds: Any, targets: Any
) -> tuple[static.Program, list[str], list[Any]]:
    """The part of a program that computes the targets, the inputs that it needs, and the targets.

    Inputs of records have their companions with them; one that no target needs is left out.
    """
    feeds = list(feeds) if isinstance(feeds, (list, tuple)) else [feeds]
    targets = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    names = [feed if isinstance(feed, str) else feed.name for feed in feeds]
    inputs = program.inputs()
    names += [lods.companion(n) for n in names if lods.companion(n) in inputs]
    pruned = program.clone(for_test=True).prune(names, targets)
    needed = [name for name in names if name in pruned.inputs()]
    if idle := [n for n in names if n not in needed and not n.endswith(OFFSETS)]:
        note(f"save_inference_model: feed {idle[0]!r}", "no target depends on it; it is left out.")
    return pruned, needed, targets


Kept = tuple[Program, list[str], list[str]]
"""A program, its feeds and its fetches by name."""

_kept: dict[Path, Kept] = {}
"""Models that this process saved and that no file can hold, by their folders."""

_ONLY_WEIGHTS = b"weights only: "
"""How a file begins that stands for a model which no file can hold."""


def _apart(program: static.Program) -> Program:
    """The same operators over values of their own, which belong to no scope."""
    found = ours(program.clone())
    found.state, found.layers = copy.deepcopy(program.state), {}
    return found


def _keep(path: Path, program: static.Program, feeds: list[str], targets: list[Any]) -> list[str]:
    """Keep a model whose steps a run counts: a file has its weights, this process its operators."""
    names = [program.name_of(program.find(target)) for target in targets]
    note(
        f"save_inference_model({str(path)!r})",
        "loops over steps that a run counts are not written into files: the weights are, and "
        "load_inference_model() works in this process.",
    )
    _kept[path.resolve()] = _apart(program), feeds, names
    model_files.remove(path)
    path.write_bytes(
        _ONLY_WEIGHTS + b"this model has loops over steps that a run counts, which no file can "
        b"hold; the weights are beside it. Build the network with the code that wrote it, and "
        b"load them with fluid.io.load_params() or paddle.static.load().\n"
    )
    return names


def _weights(program: Program, folder: Path, filename: str | None, used: list[str]) -> None:
    known = values(program)
    found = {name: known[name] for name in used if name in program.layers}
    if filename is not None:
        tensors.write_all(folder / filename, found)
        return
    for name, value in found.items():
        tensors.write(folder / name, value)


def load_inference_model(
    dirname: Any,
    executor: Any,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Any = None,
    **configs: Any,
) -> list[Any]:
    """A program that runs a saved model, the names of its inputs, and its outputs to fetch."""
    if configs:
        raise TypeError(f"load_inference_model() has no option {', '.join(configs)}")
    found = _found(Path(dirname), model_filename)
    if found.resolve() in _kept:
        kept, feeds, names = _kept[found.resolve()]
        again = _apart(kept)
        shown = [name for name in feeds if not name.endswith(OFFSETS)]
        return [again, shown, [again.var(name) for name in names]]
    if model_files.is_model(found):
        with model_files.opened(found) as folder:
            program, feeds, fetches = _loaded(folder, executor)
    else:
        program, feeds, fetches = _foreign(found, params_filename)
    named = [name for name in feeds if not name.endswith(OFFSETS)]
    return [here(program), named, fetches]


def _loaded(folder: Path, executor: Any) -> Any:
    # In a thread of its own: a script may be writing another program, and reading is no part of it.
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(fleetx_io.load_inference_model, folder, executor).result()


def _foreign(path: Path, params_filename: str | None) -> Any:
    """A model that Paddle saved, with its weights in one file or in a file for each."""
    params = None if params_filename is None else path.parent / params_filename
    if params is None and path.suffix == ".pdmodel":
        params = path.with_suffix(".pdiparams")
    with ThreadPoolExecutor(1) as apart:
        return apart.submit(foreign_models.load, path, params).result()


def _found(path: Path, model_filename: str | None) -> Path:
    beside = path.with_name(f"{path.name}.pdmodel")
    for place in (path / (model_filename or MODEL), beside, path):
        if place.resolve() in _kept or model_files.is_model(place):
            return place
        if place.is_file():
            _refuse_weights(place)
            return place
    raise FileNotFoundError(
        f"there is no model in {str(path)!r}; it must be what save_inference_model() wrote."
    )


def _refuse_weights(path: Path) -> None:
    with path.open("rb") as file:
        text = file.read(4096)
    if text.startswith(_ONLY_WEIGHTS):
        raise ProgramError(f"{str(path)!r}: {text.decode()}")


def normalize_program(program: Any, feed_vars: Any, fetch_vars: Any, **options: Any) -> Program:
    """The part of a program that leads from the feeds to the fetches, without training."""
    feeds = feed_vars if isinstance(feed_vars, (list, tuple)) else [feed_vars]
    fetches = fetch_vars if isinstance(fetch_vars, (list, tuple)) else [fetch_vars]
    pruned = _program(program).clone(for_test=True).prune(feeds, fetches)
    return ours(pruned)
