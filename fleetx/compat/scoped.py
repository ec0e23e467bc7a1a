"""Programs in the scope in force: values belong to the scope in which a program runs."""

from collections.abc import Mapping
from weakref import WeakKeyDictionary, ref

from torch import nn

from fleetx import static
from fleetx.compat.parameters import Scope, current_scope
from fleetx.compat.programs import Program, ours
from fleetx.record.initial import Initial
from fleetx.record.recording_state import paused
from fleetx.record.state import State
from fleetx.static.run import scope as programs
from fleetx.static.run.training import Training, training_of


class _Twins:
    """What programs of other scopes are in one scope."""

    def __init__(self) -> None:
        self.programs: WeakKeyDictionary[static.Program, tuple[int, Program]] = WeakKeyDictionary()
        self.states: WeakKeyDictionary[State, tuple[int, State]] = WeakKeyDictionary()
        self.trainings: dict[int, tuple[Training, Training]] = {}
        """By the id of the other one, which is kept with its twin."""


def here(program: static.Program) -> Program:
    """A program over the values of the scope in force: itself, unless these are of another scope.

    Layers that were written under one scope and get their first values in another move there, so
    that only what has values in several scopes has twins.
    """
    scope = current_scope()
    found = _found(program, scope)
    scope.attachments.setdefault(programs.Scope, programs.Scope()).know(found)
    return found


def _found(program: static.Program, scope: Scope) -> Program:
    if program.initial:
        return _startup(ours(program), scope)
    if all(_at_home(initial, scope) for initial in program.layers.values()):
        return ours(program)
    with paused():
        return _twin(program, scope)


def _at_home(initial: Initial, scope: Scope) -> bool:
    """Whether a scope keeps this layer; one that nobody keeps belongs where it first runs."""
    if initial.home is None:
        initial.home = scope.parameters
    return initial.home is scope.parameters


def _startup(startup: Program, scope: Scope) -> Program:
    """A start-up program that gives values to what the scope keeps."""
    away = {n: i for n, i in startup.initial.items() if not _at_home(i, scope)}
    for name, initial in away.items():
        if name not in scope.parameters and _may_move(initial, startup):
            _move(name, initial, scope)
    if all(_at_home(initial, scope) for initial in away.values()):
        return startup
    made = ours(static.Program())
    made.random_seed = startup.random_seed
    with paused():
        made.initial = _kept(startup.initial, scope)
    return made


def _may_move(initial: Initial, startup: static.Program) -> bool:
    """Whether a layer has no values yet, and nobody waits for them elsewhere."""
    trainings = [found for at in initial.trainings if isinstance(found := at(), Training)]
    return not initial.done and all(training.begins_with(startup) for training in trainings)


def _move(name: str, initial: Initial, scope: Scope) -> None:
    if isinstance(initial.home, dict) and initial.home.get(name) is initial:
        del initial.home[name]
    scope.parameters[name] = initial
    initial.home = scope.parameters


def _kept(layers: Mapping[str, Initial], scope: Scope) -> dict[str, Initial]:
    """What a scope keeps under the names of these layers, made where it keeps nothing."""
    found = {}
    for name, initial in layers.items():
        known = scope.parameters.get(name)
        if not _at_home(initial, scope) and (known is None or not _alike(known, initial)):
            known = scope.parameters[name] = initial.elsewhere(scope.parameters)
        found[name] = initial if _at_home(initial, scope) or known is None else known
    return found


def _alike(one: Initial, other: Initial) -> bool:
    shapes = [{n: (v.shape, v.dtype) for n, v in _values(i.module).items()} for i in (one, other)]
    return shapes[0] == shapes[1]


def _values(module: nn.Module) -> dict[str, nn.Parameter]:
    return dict(module.named_parameters())


def _twin(program: static.Program, scope: Scope) -> Program:
    """A program of another scope, over the values of this one."""
    twins: _Twins = scope.attachments.setdefault(_Twins, _Twins())
    version, made = twins.programs.get(program, (-1, None))
    if made is None or version != program.version:
        layers = _kept(program.layers, scope)
        made = ours(program.over(_state(program, layers, twins), layers))
        _train(program, made, twins)
        twins.programs[program] = program.version, made
    return made


def _state(program: static.Program, layers: Mapping[str, Initial], twins: _Twins) -> State:
    version, made = twins.states.get(program.state, (-1, None))
    if made is None or version != program.state.version:
        others: dict[int, object] = {}
        for name, initial in program.layers.items():
            pairs = zip(initial.module.modules(), layers[name].module.modules(), strict=True)
            others |= {id(one): other for one, other in pairs}
            values = _values(layers[name].module)
            others |= {id(v): values[n] for n, v in _values(initial.module).items()}
        made = program.state.over(others)
        twins.states[program.state] = program.state.version, made
    return made


def _train(program: static.Program, made: Program, twins: _Twins) -> None:
    training = training_of(program)
    if training is None:
        return
    _, own = twins.trainings.setdefault(id(training), (training, training.elsewhere()))
    made.objective = own
    for initial in made.layers.values():
        if not any(at() is own for at in initial.trainings):
            initial.trainings.append(ref(own))
