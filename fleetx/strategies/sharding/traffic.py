"""What sharding sends, by the sizes of a model and of the mesh."""

from collections.abc import Mapping

from fleetx.plan.exchange import Exchange


def traffic(
    parameter_bytes: int, mesh: Mapping[str, int], *, stage: int, at_updates: bool
) -> tuple[Exchange, ...]:
    """The exchanges of a batch.

    Args:
        parameter_bytes: of the whole model.
        mesh: how many ranks each axis has.
        stage: what is spread.
        at_updates: gradients wait for the batch that ends in an update.
    """
    ranks, copies = mesh["sharding"], mesh["dp"]
    if ranks == 1:
        return ()
    here = parameter_bytes // (mesh["pp"] * mesh["tp"])
    part = (ranks - 1) * here // ranks
    decided = f"sharding_configs['stage'] = {stage}"
    again = stage == 3
    gathered = Exchange(
        collective="all-gather",
        what="parameters",
        when="in each forward and again in each backward" if again else "in each forward",
        sent_bytes=part * (2 if again else 1),
        decided_by=decided,
    )
    scattered = Exchange(
        collective="reduce-scatter",
        what="gradients",
        when="in the backward of each update" if at_updates else "in each backward",
        sent_bytes=part,
        wide_bytes=part,
        decided_by=decided,
    )
    share = 2 * (copies - 1) * here // (ranks * copies)
    summed = Exchange(
        collective="all-reduce",
        what="each rank's share of the gradients",
        when=scattered.when,
        sent_bytes=share,
        wide_bytes=share,
        decided_by=f"dp_degree = {copies}",
    )
    return (gathered, scattered, *((summed,) if copies > 1 else ()))
