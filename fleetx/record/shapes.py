"""Shapes of variables: fake tensors with free dimensions, and what was assumed about those."""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils.weak import WeakIdKeyDictionary
from typing_extensions import override

from fleetx.record.error import ProgramError, refusal
from fleetx.record.source_lines import user_line
from fleetx.torch_internals import (
    ConstantSource,
    FakeTensor,
    FakeTensorMode,
    decompositions,
    enable_python_dispatcher,
    without_mkldnn,
    without_torch_function,
)

HINTS = (8191, 13, 17, 19, 23, 29)
"""Sizes that stand for a free dimension, by its position. Inputs that share their batch get the
same one, so that operators find them equal; primes are unlikely to equal a real size."""

FREE = (None, -1)
"""What a user writes for a dimension whose size comes with the data."""


@dataclass(frozen=True)
class Assumption:
    """Something that Python code took for granted about free dimensions while it was recorded."""

    expression: Any
    line: str

    def holds(self, sizes: Mapping[Any, int]) -> bool:
        """Whether it is true of sizes that were fed: symbol -> size."""
        known = {
            symbol: sizes[symbol] for symbol in self.expression.free_symbols if symbol in sizes
        }
        return bool(self.expression.subs(known) != sympy.false)


class _Sizes(ShapeEnv):
    """Says at its line when Python code makes a number of a free size."""

    taken: Callable[[Any], None]
    """Called with a symbol that stands for a number since."""
    _found: Any = None

    @override
    def _set_replacement(self, a: Any, tgt: Any, msg: str) -> None:
        super()._set_replacement(a, tgt, msg)
        if tgt.is_number:
            self._found = a

    @override
    def evaluate_sym_node(self, *args: Any, **kwargs: Any) -> Any:
        value = super().evaluate_sym_node(*args, **kwargs)
        found, self._found = self._found, None
        if found is not None:
            self.taken(found)
        return value


@contextmanager
def _with_states_of_lstms() -> Iterator[None]:
    """Before 2.13, what torch runs on fakes for an LSTM gives its states a dimension too many."""
    # Replaced only while one operator runs on fakes. States that are right have two dimensions and
    # go through as they are, so that another thread in the decomposition gets right ones, too.
    known = decompositions()
    original: Any = known.one_layer_lstm

    def one_layer(*args: Any, **kwargs: Any) -> Any:
        outputs, states = original(*args, **kwargs)
        return outputs, tuple(state[0] if state.dim() == 3 else state for state in states)

    known.one_layer_lstm = one_layer
    try:
        yield
    finally:
        known.one_layer_lstm = original


_REPAIRED = nullcontext if torch.__version__ >= "2.13" else _with_states_of_lstms


class Shapes:
    """The fake world of one program and its clones: no numbers, but sizes, formats and views."""

    def __init__(self) -> None:
        self.env = _Sizes(
            allow_scalar_outputs=False,
            allow_dynamic_output_shape_ops=False,
            specialize_zero_one=False,
            duck_shape=False,
        )
        self.env.taken = self._refuse_number
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=self.env)
        self._stand_ins = WeakIdKeyDictionary()
        """Values elsewhere, such as on cards -> fakes of the same shape on the CPU."""
        self._samples: Any = None
        """The one size of all inputs that are like an example: how many samples they have."""
        self.hints: dict[Any, int] = {}
        """Symbol -> the size that stands for it."""
        self.origin: dict[Any, tuple[str, int]] = {}
        """Symbol -> the input and the dimension that it is the size of."""
        self.assumptions: list[Assumption] = []
        self._count = itertools.count()
        self._guards = 0
        self._replaced = 0
        self._operating = False
        """Whether an operator runs, rather than Python code between two of them."""

    def input(self, name: str, shape: Sequence[int | None], dtype: torch.dtype) -> Tensor:
        """A fake for data that will be fed under a name."""
        sizes = [self._free(name, at) if size in FREE else size for at, size in enumerate(shape)]
        with without_torch_function(), self.mode:
            return torch.empty(sizes, dtype=dtype)

    def like(self, name: str, tensor: Tensor, known: Collection[tuple[str, int]]) -> Tensor:
        """A fake for data like an example, of which some dimensions are known to be alike.

        The first one counts samples, of which all inputs have equally many, and the example a few;
        the others stand for themselves, so that code which asks for them decides as it does for
        the example.
        """
        sizes: list[Any] = list(tensor.shape)
        for at, size in enumerate(sizes):
            if at == 0 and all(place != 0 for _, place in known):
                self._samples = self._samples or self._free(name, 0)
                sizes[0] = self._samples
            elif at > 0 and size != 1 and (name, at) not in known:
                sizes[at] = self._free(name, at, size)
        with without_torch_function(), self.mode:
            return torch.empty(sizes, dtype=tensor.dtype)

    def _free(self, name: str, at: int, hint: int = 0) -> Any:
        source, hint = ConstantSource(f"{name}_{at}"), hint or HINTS[at % len(HINTS)]
        symbol = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
        self.origin[symbol], self.hints[symbol] = (name, at), hint
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def number(self, size: Any, chosen: Mapping[Any, int]) -> int:
        """A size where symbols are these numbers; nothing is assumed by asking."""
        return int(size.node.expr.xreplace(chosen)) if isinstance(size, torch.SymInt) else int(size)

    def empty(
        self, sizes: Sequence[Any], order: Sequence[int], dtype: torch.dtype, *, requires_grad: bool
    ) -> Tensor:
        """A fake whose dimensions lie in memory in this order, as if an operator had made it."""
        with self._inside():
            made = torch.empty([sizes[at] for at in order], dtype=dtype)
            made = made.permute([order.index(at) for at in range(len(order))])
            # What has a gradient and was made by nothing could not be changed in place.
            return made.detach().requires_grad_().clone() if requires_grad else made.detach()

    def unknown(self, at: int) -> Any:
        """A size that an operator finds when it runs, at this position of what it gives."""
        source, hint = ConstantSource(f"found_{next(self._count)}"), HINTS[at % len(HINTS)]
        symbol = self.env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint_dim=None)
        self.hints[symbol] = hint
        return self.env.create_symintnode(symbol, hint=hint, source=source)

    def of(self, tensor: Tensor) -> Tensor:
        """The fake of a real tensor, the same one each time."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with without_torch_function():
            if tensor.device.type != "cpu":
                return self._at_home(tensor)
            return self.mode.from_tensor(tensor, static_shapes=True)

    def _at_home(self, tensor: Tensor) -> Tensor:
        """A fake on the CPU: programs are written for it, wherever values are."""
        found: Tensor | None = self._stand_ins.get(tensor)
        if found is None or found.shape != tensor.shape or found.dtype != tensor.dtype:
            with self.mode:
                found = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
                if isinstance(tensor, nn.Parameter):
                    found = nn.Parameter(found, requires_grad=False)
            self._stand_ins[tensor] = found
        return found.requires_grad_(tensor.requires_grad)

    def call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What ``func`` returns for fakes; refuses what needs numbers or fixes a free dimension."""
        self._look_back()
        try:
            with self._inside():
                found = func(*args, **kwargs)
        except RuntimeError as error:
            for symbol, (name, at) in self.origin.items():
                if str(symbol) in str(error):
                    error.add_note(f"{symbol} is the free dimension {at} of {name!r}")
            raise
        self._check_free(getattr(func, "__name__", repr(func)))
        return found

    @contextmanager
    def _inside(self) -> Iterator[None]:
        # With Python kernels: some C++ ones read the hint and make it a constant, silently.
        before, self._operating = self._operating, True
        try:
            with (
                without_torch_function(),
                self.mode,
                enable_python_dispatcher(),
                without_mkldnn(),  # whose operators have no fakes
                _REPAIRED(),
            ):
                yield
        finally:
            self._operating = before
        # Operators decide again at each run, with the real sizes; only Python code does not.
        self._guards = len(self.env.guards)

    def _look_back(self) -> None:
        """What Python code did with sizes since the last operator."""
        for guard in self.env.guards[self._guards :]:
            self.assumptions.append(Assumption(guard.expr, user_line()))
        self._guards = len(self.env.guards)

    def _check_free(self, function: str) -> None:
        if len(self.env.replacements) == self._replaced:
            return
        self._replaced = len(self.env.replacements)
        for symbol, value in self.env.replacements.items():
            if symbol in self.origin and value.is_number:
                name, at = self.origin[symbol]
                raise refusal(
                    user_line(),
                    f"{function} works only if dimension {at} of {name!r} is {value}, but the "
                    "program leaves it free",
                    "give it its size in static.data(), or write the line so that it follows the "
                    "size.",
                    dimension=(name, at),
                )

    def _refuse_number(self, symbol: Any) -> None:
        if not self._operating and symbol in self.origin:
            name, at = self.origin[symbol]
            self._replaced = len(self.env.replacements)
            raise refusal(
                user_line(),
                f"a number is made of dimension {at} of {name!r}, by int(), float(), range() or a "
                "function that is not torch's, but the program leaves it free",
                "give it its size in static.data(), or hand it to functions of torch as x.shape "
                "gives it, inside of a model or under static.program_guard().",
                dimension=(name, at),
            )

    def check(self, feeds: Mapping[str, Tensor]) -> None:
        """Refuse sizes that contradict what Python code assumed while it was recorded."""
        self._look_back()
        if not self.assumptions:
            return
        sizes = {
            symbol: feeds[name].shape[at]
            for symbol, (name, at) in self.origin.items()
            if name in feeds
        }
        for assumption in self.assumptions:
            if not assumption.holds(sizes):
                raise ProgramError(
                    f"{assumption.line}: Python code decided by a size, {assumption.expression}, "
                    "while the program was recorded, and the data fed now decides otherwise; feed "
                    "other sizes, or record a second program for these."
                )
