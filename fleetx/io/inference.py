"""Models for use elsewhere: a ``torch.export`` archive that plain torch loads, or ONNX."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram
from typing_extensions import override

from fleetx.api import servers, table_saves
from fleetx.expected import PATH, expect
from fleetx.io.files import Folder, written_together
from fleetx.io.persistables import checked
from fleetx.io.table_rows import attach, describe, tables_of
from fleetx.ps.tables.save_folder import TABLES
from fleetx.record.error import ProgramError
from fleetx.record.interception import suspend
from fleetx.record.recording_state import paused
from fleetx.record.regions import mark_regions
from fleetx.record.shapes import FREE
from fleetx.record.variable import Variable
from fleetx.static.layers.metrics import without_refusals
from fleetx.static.lower.flattening import flattened
from fleetx.static.lower.lowered import Lowered
from fleetx.static.record.current import program_guard
from fleetx.static.record.inputs import data
from fleetx.static.record.program import Program
from fleetx.static.run.executor import Executor

MODEL, ONNX, SIGNATURE = "model.pt2", "model.onnx", "signature.json"
_TABLES = "tables"
"""Under this name a signature has the checksum of the tables beside it."""

SIZES = (3, 5, 7, 11, 13, 17)
"""What free dimensions are while a model is exported, by position; any other size works later."""


def save_inference_model(  # noqa: PLR0917 (the order of the documents)
    executor: Executor,
    dirname: Folder,
    feeded_var_names: Sequence[Tensor | str] | Tensor | str,
    target_vars: Sequence[Tensor | str] | Tensor | str,
    main_program: Program | None = None,
    export_for_deployment: bool = True,
    *,
    format: str = "torch",
) -> list[str]:
    """Save what leads from the feeds to the targets, weights included.

    ``model.pt2`` is loaded by ``torch.export.load`` without fleetx; ``signature.json`` names inputs
    and outputs. All files appear together, or none if one of them cannot be written. In a job with
    parameter servers the first worker writes; tables that the targets depend on go beside the
    archive, in ``tables``, and dense parameters in ``dense.safetensors``; both name the tables that
    they belong to.

    Args:
        executor: the one that runs the program.
        dirname: the folder.
        feeded_var_names: the inputs of the model, in the order in which it takes them.
        target_vars: its outputs.
        main_program: the default one if None.
        export_for_deployment: freeze dropout and batch normalisation; False exports them as they
            train, for fine-tuning with plain torch.
        format: "torch", or "onnx" for ``model.onnx`` as well, which needs the extra ``[onnx]``.

    Returns:
        The names of the outputs.
    """
    program = checked("save_inference_model", executor, dirname, main_program)
    check_format(format)
    suspend()
    feeds = [program.name_of(program.find(feed)) for feed in _listed(feeded_var_names)]
    targets = _listed(target_vars)
    pruned = _pruned(program, feeds, targets, for_test=export_for_deployment)
    names = [program.name_of(program.find(target)) for target in targets]
    if format == "onnx" and len(set(names)) < len(names):
        raise ValueError(f"a model of ONNX has an output once, and target_vars has {names}.")
    onnx = format == "onnx"
    with paused():  # exporting is no part of a program that is written meanwhile
        module = _graph_module(pruned, [pruned.find(name) for name in names], executor.device)
        with table_saves.held_by_the_first(Path(dirname)):
            tables = _serve(module, Path(dirname), format) if servers.has_servers() else ""
            if tables is not None:
                signature = _signature(pruned, names, tables)
                _export(
                    module, pruned, Path(dirname), executor.device, also_onnx=onnx, said=signature
                )
    return names


def _listed(given: Sequence[Tensor | str] | Tensor | str) -> list[Tensor | str]:
    return [given] if isinstance(given, Tensor | str) else list(given)


def check_format(format: str) -> None:
    """Refuse a format that cannot be written here; worth a call before a long training."""
    if format not in {"torch", "onnx"}:
        raise ValueError(f"save_inference_model() writes format 'torch' or 'onnx', got {format!r}")
    if format == "onnx":
        try:
            import onnx  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise ImportError(
                "save_inference_model(format='onnx') needs onnx and onnxscript; install "
                "'fleetx[onnx]', or leave the format at 'torch'."
            ) from error


def _serve(module: fx.GraphModule, folder: Path, format: str) -> str | None:
    """Save what the servers hold of a model.

    Returns:
        The checksum of the tables, "" if it has none; None if this worker is not the one that
        writes.
    """
    looked_up = bool(tables_of(module))
    if looked_up and format != "torch":
        raise ValueError(
            f"save_inference_model(format={format!r}): rows of tables lie beside the model, and "
            "such a file has no words for that; leave the format at 'torch'"
        )
    if not table_saves.save_tables(folder / TABLES if looked_up else None):
        return None
    if not looked_up:
        return ""
    tables = table_saves.save_dense(module, folder)
    describe(module)
    return tables


def _pruned(program: Program, feeds: list[str], targets: list[Any], *, for_test: bool) -> Program:
    form = program.clone(for_test=True) if for_test else program
    pruned = form.prune(feeds, targets)
    if surplus := sorted(pruned.inputs().keys() - set(feeds)):
        raise ProgramError(
            f"the targets depend on {', '.join(surplus)} too, which feeded_var_names does not "
            "list; list all inputs that they need, or choose other targets."
        )
    if len(set(feeds)) < len(feeds):
        raise ProgramError(
            f"feeded_var_names has an input twice: {', '.join(feeds)}; list it once."
        )
    if idle := [name for name in feeds if name not in pruned.inputs()]:
        raise ProgramError(f"no target depends on {', '.join(idle)}; leave it out of the feeds.")
    _order_inputs(pruned, feeds)
    return pruned


def _order_inputs(program: Program, names: list[str]) -> None:
    """Let the inputs of a model come in the order in which its user listed them."""
    first = next(iter(program.graph.nodes))
    for name in names:
        node = program.inputs()[name]
        if node is first:
            first = first.next
        else:
            first.prepend(node)
    program.changed()


def _graph_module(program: Program, outputs: list[fx.Node], device: torch.device) -> fx.GraphModule:
    """A module that takes the inputs by name, and whose state has the program's names."""
    program.state.gather("save_inference_model")
    program.state.to(device)
    graph = flattened(program, outputs, device)
    mark_regions(graph, exported=True)
    without_refusals(graph)
    root = Lowered(program)
    root.recorded_modes.set(graph, program)
    module = fx.GraphModule(root, graph)
    module.training = not program.for_test
    return module


def _export(
    module: fx.GraphModule,
    program: Program,
    folder: Path,
    device: torch.device,
    *,
    also_onnx: bool,
    said: dict[str, Any],
) -> None:
    inputs = program.inputs()
    example = tuple(_example(node, device) for node in inputs.values())
    shapes = tuple(_free(node) for node in inputs.values())
    with torch.no_grad():
        exported = torch.export.export(module, example, dynamic_shapes=shapes, strict=False)
    exported.example_inputs = None  # torch would pickle them
    text = json.dumps(said, indent=2)
    # All are written before one of them is seen: a model without its signature is of no use.
    with written_together(folder, unless_written=[ONNX]) as beside:
        # It holds its signature: a worker that dies here may leave it beside that of another save.
        torch.export.save(exported, beside / MODEL, extra_files={SIGNATURE: text})
        if also_onnx:
            names = list(inputs), [name.replace(".", "_") for name in said["outputs"]]
            _write_onnx(module, example, shapes, beside / ONNX, names)
        (beside / SIGNATURE).write_text(text, encoding="utf-8")


def _signature(program: Program, outputs: list[str], tables: str) -> dict[str, Any]:
    """What inputs and outputs are, and the checksum of the tables that belong to the model."""
    inputs = {name: _declared(node) for name, node in program.inputs().items()}
    return {"inputs": inputs, "outputs": outputs} | ({_TABLES: tables} if tables else {})


def _write_onnx(
    module: fx.GraphModule,
    example: tuple[Tensor, ...],
    shapes: tuple[Any, ...],
    path: Path,
    names: tuple[list[str], list[str]],
) -> None:
    torch.onnx.export(
        module,
        example,
        path,
        input_names=names[0],
        output_names=names[1],
        dynamic_shapes=shapes,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def _example(node: fx.Node, device: torch.device) -> Tensor:
    sizes = [SIZES[at % 6] if size in FREE else size for at, size in enumerate(node.meta["shape"])]
    return torch.zeros(sizes, dtype=node.meta["val"].dtype, device=device)


def _free(node: fx.Node) -> dict[int, Any]:
    return {at: Dim.DYNAMIC for at, size in enumerate(node.meta["shape"]) if size in FREE}


def _declared(node: fx.Node) -> dict[str, Any]:
    shape = [None if size in FREE else size for size in node.meta["shape"]]
    return {"shape": shape, "dtype": str(node.meta["val"].dtype).removeprefix("torch.")}


class Loaded(nn.Module):
    """A model that was saved, as one operator of a program."""

    one_operator = True

    def __init__(self, exported: ExportedProgram) -> None:
        super().__init__()
        self.model = exported.module()

    @override
    def forward(self, *inputs: Tensor) -> Any:
        return self.model(*inputs)


def load_inference_model(
    dirname: Folder, executor: Executor
) -> tuple[Program, list[str], list[Variable]]:
    """A program that runs what ``save_inference_model`` saved.

    Returns:
        The program, the names of its inputs, and its outputs, to be fetched.
    """
    if not isinstance(executor, Executor):
        raise TypeError(f"load_inference_model() takes a static.Executor second, got {executor!r}")
    expect("load_inference_model", "dirname", dirname, PATH)
    folder = Path(dirname)
    if not (folder / SIGNATURE).is_file():
        raise FileNotFoundError(
            f"{str(dirname)!r} has no {SIGNATURE}; it must be a folder that "
            "save_inference_model() wrote."
        )
    inside = {SIGNATURE: ""}
    module = Loaded(torch.export.load(folder / MODEL, extra_files=inside))
    # Archives of before do not hold it.
    text = inside[SIGNATURE] or (folder / SIGNATURE).read_text(encoding="utf-8")
    signature = json.loads(text)
    attach(module.model, folder / MODEL, signature.get(_TABLES, ""))
    program = Program()
    with program_guard(program, Program()):
        inputs = [data(name, **declared) for name, declared in signature["inputs"].items()]
        found = module(*inputs)
    program.for_test = True
    return program, list(signature["inputs"]), _named(program, signature["outputs"], found)


def _named(program: Program, names: list[str], found: Sequence[Variable]) -> list[Variable]:
    """The outputs under the names that they were saved with; one that was listed twice is one."""
    for node in program.graph.nodes:
        if node.op != "placeholder":  # those have automatic names, which may be an output's
            node.meta["name"] = f"{node.name}@loaded"
    program.changed()
    made: dict[str, Variable] = {}
    for name, variable in zip(names, found, strict=True):
        if name not in made:
            made[name] = variable
            if name not in program.inputs():
                variable.name = name
    return [made[name] for name in names]
