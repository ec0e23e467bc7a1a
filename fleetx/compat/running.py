"""``Executor`` in Paddle's words: feeds of every kind, fetched arrays, scopes."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from typing_extensions import override

from fleetx import roles, static
from fleetx.api import session
from fleetx.compat import lods, places, scopes, transpiled
from fleetx.compat.after_updates import Gradient
from fleetx.compat.arrays import scalar_like
from fleetx.compat.lod_tensors import LoDTensor
from fleetx.compat.notes import note
from fleetx.compat.pipelined_programs import others_fetch
from fleetx.compat.scoped import here
from fleetx.compat.strategies import CompiledProgram
from fleetx.ps.worker.sparse_module import SparseModule
from fleetx.record.error import ProgramError
from fleetx.record.shapes import FREE
from fleetx.static.lr import Schedule


class _AtJob(static.Executor):
    """Computes where its worker does, in a job: scripts with servers name the CPU everywhere."""

    @property  # type: ignore[explicit-override]
    @override
    def device(self) -> torch.device:
        """The worker's, or that of the place."""
        if not roles.started() or self._place == roles.device():
            return self._place
        note(f"Executor on {self._place}", f"this worker computes on {roles.device()}")
        return roles.device()

    @device.setter
    @override
    def device(self, device: torch.device) -> None:
        self._place = device


class _OverData(_AtJob):
    """Runs the batches of a data set, which are tensors and stay tensors."""

    @override
    def run(
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        *,
        return_numpy: bool = True,
        use_program_cache: bool = False,
    ) -> list[Any]:
        return super().run(
            program,
            fed(program, feed),
            fetch_list,
            return_numpy=return_numpy,
            use_program_cache=use_program_cache,
        )


class Executor(_AtJob):
    """Computes programs on one place."""

    def __init__(self, place: Any = None) -> None:
        super().__init__(places.plain(place))
        self._over_data = _OverData(places.plain(place))
        self.place = place if place is not None else places.CPUPlace()

    @override
    def run(
        self,
        program: Any = None,
        feed: Any = None,
        fetch_list: Any = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Any = None,
        return_numpy: bool = True,
        use_program_cache: bool = False,
        return_merged: bool = True,
        use_prune: bool = False,
    ) -> Any:
        """Run a program once and return what was fetched, in arrays or ``LoDTensor``.

        Args:
            program: one of ``fluid.Program``, compiled or not; the default main program if None.
            feed: name -> array, list, ``LoDTensor`` or tensor; a list with one such dict.
            fetch_list: variables by object or by name.
            feed_var_name: has no effect: there is no variable of feeds.
            fetch_var_name: has no effect, for the same reason.
            scope: the scope in force while it runs.
            return_numpy: arrays instead of ``LoDTensor``.
            use_program_cache: check feeds only at the first run.
            return_merged: what several cards of a process fetch is one; a process has one card.
            use_prune: compute the fetches alone, and train nothing.
        """
        if isinstance(program, transpiled.ServerProgram):
            program.serve()
            return []
        program = self._chosen(program, use_prune)
        plain = program.program if isinstance(program, CompiledProgram) else program
        fetches, given = _listed(fetch_list), _one(feed)
        with ExitStack() as stack:
            if scope is not None:
                stack.enter_context(scopes.scope_guard(scope))
            program = self._here(program)
            _reach_servers(program)
            given = _without_kept(plain, given)
            known = [fetch for fetch in fetches if not _elsewhere(plain, fetch)]
            begins = [None if return_numpy else lods.begins(plain, fetch) for fetch in known]
            records = [at for at in begins if at is not None]
            found = super().run(
                program,
                None if given is None else fed(plain, given),
                [*known, *records, *others_fetch(plain, [*known, *records])],
                return_numpy=False,
                use_program_cache=use_program_cache,
            )
            own, offsets = iter(found[: len(known)]), iter(found[len(known) :])
            starts = iter([None if at is None else next(offsets) for at in begins])
            values = [
                (scopes.global_scope().find_var(fetch).get_tensor().tensor(), None)  # type: ignore[union-attr]
                if _elsewhere(plain, fetch)
                else (next(own), next(starts))
                for fetch in fetches
            ]
        return [_given(value, return_numpy, starts) for value, starts in values]

    @override
    def close(self) -> None:
        """Part from servers that a transpiler led to."""
        transpiled.stop()

    @staticmethod
    def _here(program: Any, *, learning: bool = True) -> Any:
        """The program over the values of the scope in force."""
        if isinstance(program, CompiledProgram):
            found = here(program.program)
            return program if found is program.program else here(program.prepared())
        if not learning and here(program) is not program and program.objective is not None:
            program = program.clone(for_test=True)
        return here(program)

    def _chosen(self, program: Any, use_prune: bool) -> Any:
        program = static.default_main_program() if program is None else program
        if not isinstance(program, (static.Program, static.CompiledProgram)):
            inner = getattr(program, "program", None) or getattr(program, "_program", None)
            if not isinstance(inner, static.Program):
                raise TypeError(f"Executor.run() takes a fluid.Program first, got {program!r}")
            program = inner
        if use_prune and isinstance(program, static.Program) and program.objective is not None:
            return program.clone(for_test=True)
        return program

    @override
    def train_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Any = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> int:
        """Train a program on every batch of a data set."""
        _note_idle("train_from_dataset", thread, debug)
        with scopes.scope_guard(scope or scopes.global_scope()):
            return self._over_data.train_from_dataset(
                self._here(self._chosen(program, False)),
                dataset,
                fetch_list=_listed(fetch_list),
                fetch_info=fetch_info,
                print_period=print_period,
                fetch_handler=fetch_handler,
            )

    @override
    def infer_from_dataset(
        self,
        program: Any = None,
        dataset: Any = None,
        scope: Any = None,
        thread: int = 0,
        debug: bool = False,
        fetch_list: Any = None,
        fetch_info: Any = None,
        print_period: int = 100,
        fetch_handler: Any = None,
    ) -> int:
        """The same without learning."""
        _note_idle("infer_from_dataset", thread, debug)
        with scopes.scope_guard(scope or scopes.global_scope()):
            return self._over_data.infer_from_dataset(
                self._here(self._chosen(program, False), learning=False),
                dataset,
                fetch_list=_listed(fetch_list),
                fetch_info=fetch_info,
                print_period=print_period,
                fetch_handler=fetch_handler,
            )


def _reach_servers(program: Any) -> None:
    """Let a program that is tested before the first batch find its tables, which training does."""
    plain = program.program if isinstance(program, CompiledProgram) else program
    if plain.objective is not None and not plain.initial:
        transpiled.meet_at_a_batch()
    if plain.objective is None and not plain.initial and roles.started() and session.begun():
        layers = plain.state.root.modules()
        if any(isinstance(layer, SparseModule) and layer.row_source is None for layer in layers):
            session.begin_programs()


def _note_idle(call: str, thread: int, debug: bool) -> None:
    if thread > 1:
        note(f"{call}(thread={thread})", "a worker computes its batches one after the other.")
    if debug:
        note(f"{call}(debug=True)", "times of operators are not kept; torch.profiler has them.")


def _listed(fetches: Any) -> list[Any]:
    if fetches is None:
        return []
    if isinstance(fetches, (Tensor, str, Schedule, Gradient)):
        fetches = [fetches]
    found: list[Any] = []
    for entry in fetches:
        found += _listed(entry) if isinstance(entry, (list, tuple)) else [entry]
    named = [entry.name if isinstance(entry, Gradient) else entry for entry in found]
    return [entry for entry in named if entry is not None]


def _one(feed: Any) -> Mapping[str, Any] | None:
    if isinstance(feed, (list, tuple)):
        if len(feed) > 1:
            raise ProgramError(
                f"feed is a list of {len(feed)} dicts, one for each card of the process, and a "
                "process has one here; start the script with fleetrun, and feed a dict."
            )
        return feed[0] if feed else None
    if feed is not None and not isinstance(feed, Mapping):
        raise TypeError(f"feed is a dict of arrays by the names of inputs, got {feed!r}")
    return feed or None


def _elsewhere(program: static.Program, fetch: Any) -> bool:
    """Whether a name is that of a value which no program has, such as a learning rate."""
    if not isinstance(fetch, str):
        return False
    try:
        program.find(fetch)
    except ProgramError:
        training = program.objective
        own = getattr(training, "provided", None)
        if own is not None and fetch in own(program):
            return False
        return scopes.global_scope().find_var(fetch) is not None
    return False


def _given(value: Any, as_numpy: bool, begins: Any = None) -> Any:
    if isinstance(value, Tensor) and value.dtype == torch.bfloat16:
        value = value.float()
    array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    array = array.reshape(1) if array.ndim == 0 else array  # as Paddle 1 has single numbers
    if as_numpy:
        return scalar_like(array)
    return LoDTensor(array, None if begins is None else [[*begins.tolist(), len(array)]])


def _without_kept(
    program: static.Program, feed: Mapping[str, Any] | None
) -> Mapping[str, Any] | None:
    """The feed without parameters, which have what was fed from now on; None if nothing is left."""
    inputs = program.inputs()
    kept = [n for n in feed or () if n not in inputs and n in program.layers]
    if not feed or not kept:
        return feed
    for name in kept:
        held = scopes.global_scope().find_var(name)
        assert held is not None
        held.get_tensor().set(feed[name])
    return {name: value for name, value in feed.items() if name not in kept} or None


def fed(program: static.Program, feed: Mapping[str, Any]) -> dict[str, Any]:
    """A feed as fleetx takes it: tensors and arrays in the formats and shapes of the inputs."""
    inputs = program.inputs()
    given = lods.expanded(program, _whole_rows(inputs, feed))
    found = {}
    for name, value in given.items():
        if name in inputs:
            found[name] = _fitting(value, inputs[name])
        else:
            note(f"feed[{name!r}]", "the program has no such input, so it is left out.")
    return found


def _whole_rows(inputs: Mapping[str, fx.Node], feed: Mapping[str, Any]) -> dict[str, Any]:
    """A plain array that is fed where sequences are expected has a sequence in every row."""
    found = dict(feed)
    for name, value in feed.items():
        begins = lods.companion(name)
        if begins not in inputs or begins in feed or not _is_plain(value):
            continue
        found[begins] = np.arange(len(value), dtype="int64")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, LoDTensor):
        return not value.recursive_sequence_lengths()
    return isinstance(value, (np.ndarray, Tensor))


def _fitting(value: Any, node: fx.Node) -> Any:
    dtype = node.meta["val"].dtype
    if isinstance(value, LoDTensor):
        value = value.tensor()
    if not isinstance(value, Tensor):
        value = _tensor(value, dtype)
    elif type(value) is not Tensor:
        value = value.detach().as_subclass(Tensor)
    if value.dtype != dtype and _alike(value.dtype, dtype):
        value = value.to(dtype)
    return _reshaped(value, node.meta["shape"])


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    array = np.asarray(value)
    if array.dtype == object:
        raise ProgramError(
            "a feed has rows of different lengths, and its input was declared without lod_level; "
            "pad the rows, or declare it with lod_level=1."
        )
    if not isinstance(value, np.ndarray):
        return torch.as_tensor(array).to(dtype)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _alike(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether numbers keep their kind: floating or whole."""
    return given.is_floating_point == wanted.is_floating_point and not wanted.is_complex


def _reshaped(value: Tensor, sizes: Sequence[int | None]) -> Tensor:
    """Labels come as [n] where [n, 1] was declared, and the other way round."""
    if value.dim() == len(sizes):
        return value
    inner = list(sizes[1:])
    if value.dim() == 0:
        return value.reshape([1] * len(sizes))
    if value.dim() == 1 and all(size == 1 for size in inner):
        return value.reshape(-1, *[1] * len(inner))
    if value.dim() > len(sizes) and all(size == 1 for size in value.shape[len(sizes) :]):
        return value.reshape(value.shape[: len(sizes)])
    if all(size not in FREE for size in inner):
        count = math.prod(size or 0 for size in inner)
        if count and value.numel() == value.shape[0] * count:
            return value.reshape(-1, *[int(size) for size in inner if size is not None])
    return value


def as_numpy(value: Any) -> Any:
    """Arrays of what was fetched."""
    if isinstance(value, (list, tuple)):
        return [as_numpy(entry) for entry in value]
    return scalar_like(np.asarray(value))
