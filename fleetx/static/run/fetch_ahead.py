"""Rows on servers for the next batch of a data set, fetched while this one is trained."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from torch import fx

from fleetx.nn.sparse_embedding import SparseEmbedding
from fleetx.static.lower.flattening import needed
from fleetx.static.record.program import Program
from fleetx.static.run.slot_feeds import Slotted
from fleetx.static.run.training_run import TrainingRun

Show = Callable[[Mapping[str, Slotted]], None]


def fetching_ahead(program: Program, run: TrainingRun) -> Show | None:
    """What shows a batch to the tables that look its ids up; None where that would be seen.

    Ids that an operator makes of what is fed are not known before their batch is computed.
    """
    if any("due" in strategy.contract.touches for strategy in run.engine.plan.strategies):
        return None  # rows wait for the update before them, which comes after some batches only
    found = list(_lookups(program, run))
    uses = Counter(layer for layer, _ in found)
    # A layer that is used twice in a batch would be told of more than it remembers.
    lookups = [(layer, name) for layer, name in found if uses[layer] == 1 and layer.exact_prefetch]

    def show(batch: Mapping[str, Slotted]) -> None:
        for layer, name in lookups:
            if name in batch:
                layer.prefetch(batch[name].values)

    return show if lookups else None


def _lookups(program: Program, run: TrainingRun) -> Iterator[tuple[SparseEmbedding, str]]:
    assert program.objective is not None
    kept = needed(program, [program.node(program.objective.loss)])
    for node in program.graph.nodes:
        if (
            node.op == "call_module"
            and node in kept
            and node.meta["training"]
            and node.meta["grad"]
        ):
            layer, ids = run.lowered.get_submodule(str(node.target)), node.args[0]
            fed = isinstance(ids, fx.Node) and ids.op == "placeholder"
            if isinstance(layer, SparseEmbedding) and fed:
                yield layer, str(ids.target)
