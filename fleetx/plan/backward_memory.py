"""What a backward holds besides what its forward saved: outputs, and gradients of values."""

from collections.abc import Collection, Mapping

from fleetx.plan.trace import Number, Operation, Trace


def as_it_begins(trace: Trace) -> int:
    """Bytes at most before and while it passes the criterion.

    Outputs, of which the step lets go when there is a loss; then gradients of what the criterion
    computed.
    """
    return max(_at_its_beginning(trace))


def as_it_begins_beside_outputs(trace: Trace) -> int:
    """The same where outputs stay, as schedules of pipelines keep those of their last stage."""
    return sum(_at_its_beginning(trace))


def _at_its_beginning(trace: Trace) -> tuple[int, int]:
    """Bytes of outputs that nobody keeps for backward; most of the criterion's gradients."""
    roots = [call for call in trace.calls if not call.path]
    outputs = {number for call in roots for number in call.makes} - trace.own.keys()
    ended = trace.model_ends
    criterion = [one for one in trace.operations if one.at > ended]
    made = {number for one in criterion for number in one.makes} | outputs
    saved = {one.value for one in trace.saved}
    gradients, most = set[int](), 0
    for one in reversed(criterion):
        gradients |= made.intersection(one.reads) if one.makes else set()
        most = max(most, _bytes(trace, gradients))
        gradients -= {*one.makes}
    return _bytes(trace, outputs - saved), most


def in_its_course(trace: Trace, coming: Collection[str] = ()) -> int:
    """Bytes at most in the model, less those let go by then: gradients of values.

    Args:
        trace: the forward.
        coming: names of parameters whose gradients are not there before, and stay.
    """
    new = {number for number, name in trace.own.items() if name in coming}
    wanted, leaving, ended = _wanted(trace) | new, _leaving(trace), trace.model_ends
    gradients, alive, gone, most = set[int](), 0, 0, 0
    for at in reversed(range(len(trace.operations))):
        one = trace.operations[at]
        if one.makes:
            new = wanted.intersection(one.reads) - gradients
            gradients |= new
            alive += _bytes(trace, new)
        if one.at <= ended:
            most = max(most, alive - gone)
        used = gradients.intersection(one.makes)
        gradients -= used
        alive -= _bytes(trace, used)
        gone += leaving.get(at, 0)
    return most


def _wanted(trace: Trace) -> set[Number]:
    """Values that get gradients; those of parameters are counted elsewhere."""
    wanted = {*trace.own}
    for one in trace.operations:
        if one.count.dtype.is_floating_point and not wanted.isdisjoint(one.reads):
            wanted.update(one.makes)
    return wanted - trace.own.keys()


def _leaving(trace: Trace) -> Mapping[int, int]:
    """Place of an operator -> bytes that nobody needs once its backward has run."""
    first: dict[Number, int] = {}
    for saved in trace.saved:
        first.setdefault(saved.value, saved.at)
    found: dict[int, int] = {}
    places = iter(sorted(first.items(), key=lambda item: item[1]))
    value, moment = next(places, (0, -1))
    for at, one in enumerate(trace.operations):
        while 0 <= moment < _until(trace.operations, at):
            if moment < one.at or value in one.makes:
                found[at] = found.get(at, 0) + trace.values[value].size
            else:  # an input of the next one
                found[at + 1] = found.get(at + 1, 0) + trace.values[value].size
            value, moment = next(places, (0, -1))
    return found


def _until(operations: list[Operation], at: int) -> float:
    return operations[at + 1].at if at + 1 < len(operations) else float("inf")


def _bytes(trace: Trace, numbers: set[Number]) -> int:
    return sum(trace.values[number].size for number in numbers)
