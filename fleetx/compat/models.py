"""Models for use without training: saved as fleetx saves them, with weights in Paddle's files."""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fleetx import io as fleetx_io
from fleetx import static
from fleetx.compat import lods
from fleetx.compat.files import tensors
from fleetx.compat.notes import note
from fleetx.compat.programs import Program, ours
from fleetx.compat.recorded import BY_NUMBERS
from fleetx.compat.scoped import here
from fleetx.io.inference import SIGNATURE
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

    The model is a folder called ``model_filename`` or ``__model__`` inside of ``dirname``; the
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
    """``paddle.static.save_inference_model``: a folder ``<prefix>.pdmodel``, and ``.pdiparams``."""
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
    executor: Any, folder: Path, program: Program, feeds: Any, targets: Any, deployed: bool
) -> tuple[list[str], list[str]]:
    feeds = [feeds] if isinstance(feeds, str) else list(feeds)
    targets = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    names = [feed if isinstance(feed, str) else feed.name for feed in feeds]
    inputs = program.inputs()
    names += [lods.companion(n) for n in names if lods.companion(n) in inputs]
    pruned = program.clone(for_test=True).prune(names, targets)
    needed = [name for name in names if name in pruned.inputs()]
    if idle := [n for n in names if n not in needed and not n.endswith(OFFSETS)]:
        note(f"save_inference_model: feed {idle[0]!r}", "no target depends on it; it is left out.")
    if folder.is_file():
        folder.unlink()  # a model of Paddle's own
    if any(node.meta.get(BY_NUMBERS) for node in pruned.graph.nodes):
        return list(values(pruned)), _keep(folder, pruned, needed, targets)
    outputs = fleetx_io.save_inference_model(executor, folder, needed, targets, program, deployed)
    return list(values(pruned)), outputs


Kept = tuple[Program, list[str], list[str]]
"""A program, its feeds and its fetches by name."""

_kept: dict[Path, Kept] = {}
"""Models that this process saved and that no file can hold, by their folders."""

_ONLY_WEIGHTS = "weights_only.txt"


def _apart(program: static.Program) -> Program:
    """The same operators over values of their own, which belong to no scope."""
    found = ours(program.clone())
    found.state, found.layers = copy.deepcopy(program.state), {}
    return found


def _keep(folder: Path, program: static.Program, feeds: list[str], targets: list[Any]) -> list[str]:
    """Keep a model whose steps a run counts: a file has its weights, this process its operators."""
    names = [program.name_of(program.find(target)) for target in targets]
    note(
        f"save_inference_model({str(folder)!r})",
        "loops over steps that a run counts are not written into files: the weights are, and "
        "load_inference_model() works in this process.",
    )
    _kept[folder.resolve()] = _apart(program), feeds, names
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIGNATURE).unlink(missing_ok=True)
    (folder / _ONLY_WEIGHTS).write_text(
        "This model has loops over steps that a run counts, which no file can hold; the weights "
        "are in the folder above. Build the network with the code that wrote it, and load them "
        "with fluid.io.load_params() or paddle.static.load().\n"
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
    # In a thread of its own: a script may be writing another program, and reading is no part of it.
    with ThreadPoolExecutor(1) as apart:
        loading = apart.submit(fleetx_io.load_inference_model, found, executor)
        program, feeds, fetches = loading.result()
    named = [name for name in feeds if not name.endswith(OFFSETS)]
    return [here(program), named, fetches]


def _found(path: Path, model_filename: str | None) -> Path:
    beside = path.with_name(f"{path.name}.pdmodel")
    for place in (path / (model_filename or MODEL), beside, path):
        if (place / SIGNATURE).is_file() or place.resolve() in _kept:
            return place
        if (place / _ONLY_WEIGHTS).is_file():
            raise ProgramError(f"{str(place)!r}: {(place / _ONLY_WEIGHTS).read_text()}")
        if place.is_file():
            raise ProgramError(
                f"{str(place)!r} is a model of Paddle's own executor, whose kernels are not here; "
                "build the network with the code that wrote it, load the weights with "
                "fluid.io.load_persistables() or load_vars(), and save it again."
            )
    raise FileNotFoundError(
        f"there is no model in {str(path)!r}; it must be what save_inference_model() wrote."
    )


def normalize_program(program: Any, feed_vars: Any, fetch_vars: Any, **options: Any) -> Program:
    """The part of a program that leads from the feeds to the fetches, without training."""
    feeds = feed_vars if isinstance(feed_vars, (list, tuple)) else [feed_vars]
    fetches = fetch_vars if isinstance(fetch_vars, (list, tuple)) else [fetch_vars]
    pruned = _program(program).clone(for_test=True).prune(feeds, fetches)
    return ours(pruned)
