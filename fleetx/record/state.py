"""What a program keeps between runs: a tree of modules with parameters and buffers by name."""

import copy
from collections.abc import Container, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from fleetx.record.error import ProgramError
from fleetx.torch_internals import buffers_of, children_of, parameters_of

RESERVED = ("segments", "stages", "modes")
"""Names that lowering gives to parts of a program."""


class Names:
    """Hands out names such as fc_0, fc_1."""

    def __init__(self, *, repeat: bool = False) -> None:
        self._counts: dict[str, int] = {}
        self._repeat = repeat
        """Whether names that exist are given again, so that layers are shared."""

    def unique(self, base: str, taken: Container[str] = ()) -> str:
        """The base with the next number, and one that is not taken unless names repeat."""
        return self.fresh(base, () if self._repeat else taken)

    def fresh(self, base: str, taken: Container[str] = ()) -> str:
        """The base with the next number that is not taken."""
        while True:
            count = self._counts.get(base, 0)
            self._counts[base] = count + 1
            if f"{base}_{count}" not in taken:
                return f"{base}_{count}"


class SpreadValues(Protocol):
    """Values of a program while each worker trains a part of them."""

    def gather(self, call: str) -> None:
        """Let the program have whole values; all workers take part."""

    def deal(self) -> None:
        """Let every worker train its part of what the program has now."""

    def moved(self) -> None:
        """Note that a run has changed the parts."""

    def on_host(self, own: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Copies of whole tensors, of which each worker gives its part; of the values if None."""


class State:
    """Modules that a program uses, and the path of everything in them."""

    def __init__(self) -> None:
        self.root = nn.Module()
        self._paths: dict[int, str] = {}
        self._kept: list[object] = []  # a path belongs to an object that must not be replaced
        self._constants = Names()
        self.spread: SpreadValues | None = None
        """How workers share the values, when each trains a part of them."""

    def gather(self, call: str) -> None:
        """Make sure that values are whole here; where they are spread, all workers take part."""
        if self.spread is not None:
            self.spread.gather(call)

    def deal(self) -> None:
        """Let what was written here be what is trained."""
        if self.spread is not None:
            self.spread.deal()

    def path(self, item: Tensor | nn.Module) -> str | None:
        """Where a module, parameter or buffer lives; None if it is not the program's."""
        return self._paths.get(id(item))

    def add(self, module: nn.Module, name: str) -> str:
        """Take a module in under a name; its parameters become the program's."""
        if name in RESERVED or hasattr(self.root, name) or not name.isidentifier():
            raise ProgramError(
                f"the name {name!r} of a layer is taken or reserved, or no Python name, and names "
                "of parameters and of files are built from it; choose another."
            )
        self.root.add_module(name, module)
        for path, part in module.named_modules(prefix=name):
            self._know(part, path)
            for attribute, tensor in own_tensors(part):
                self._know(tensor, f"{path}.{attribute}")
        return name

    def put(self, parameter: nn.Parameter, name: str) -> str:
        """Take in one parameter under a name of its own, which may have dots."""
        owner, _, attribute = name.rpartition(".")
        if name.partition(".")[0] in RESERVED or not attribute:
            raise ProgramError(f"the name {name!r} of a parameter is reserved; choose another.")
        holder = self._holder(owner)
        if hasattr(holder, attribute):
            raise ProgramError(f"the name {name!r} of a parameter is taken; choose another.")
        holder.register_parameter(attribute, parameter)
        self._know(parameter, name)
        return name

    def _holder(self, path: str) -> nn.Module:
        """The module at a path, made if there is none."""
        found = self.root
        for part in path.split(".") if path else ():
            if part not in children_of(found):
                if hasattr(found, part):
                    raise ProgramError(
                        f"a parameter of {path!r} cannot be: {part!r} is a parameter itself, and a "
                        "name with dots says what lies in what; join the two with another sign."
                    )
                found.add_module(part, nn.Module())
            found = found.get_submodule(part)
        return found

    def operator(self, module: nn.Module, kind: str) -> str:
        """Take in a module that stands for an operator, under the next number of its kind."""
        return self.add(module, self._constants.fresh(kind, children_of(self.root)))

    def constant(self, tensor: Tensor) -> str:
        """The path of a tensor of the script; a number that never changes, unless a parameter."""
        known = self.path(tensor)
        if known is not None:
            return known
        if isinstance(tensor, nn.Parameter):
            name = self._constants.unique("parameter")
            self.root.register_parameter(name, tensor)
        else:
            name = self._constants.unique("constant")
            self.root.register_buffer(name, tensor, persistent=False)
        self._know(tensor, name)
        return name

    def _know(self, item: object, path: str) -> None:
        self._paths.setdefault(id(item), path)
        self._kept.append(item)

    def persistent(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, each once."""
        found: dict[str, Tensor] = {}
        seen: set[int] = set()
        for path, tensor in self.root.state_dict(keep_vars=True).items():
            if isinstance(tensor, Tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                found[path] = tensor
        return found

    @property
    def version(self) -> int:
        """Grows with everything that is taken in."""
        return len(self._kept)

    def over(self, others: Mapping[int, object]) -> "State":
        """The same tree with other values: by the id of a module or tensor, what stands for it."""
        made = State()
        made._constants = copy.deepcopy(self._constants)
        made.root = copy.deepcopy(self.root, dict(others))
        for path, part in made.root.named_modules():
            for item, at in ((part, path), *((t, f"{path}.{n}") for n, t in own_tensors(part))):
                made._know(item, at.strip("."))
        return made

    def trained(self) -> dict[str, nn.Parameter]:
        """Parameters by name."""
        return dict(self.root.named_parameters())

    def to(self, device: torch.device) -> None:
        """Move everything."""
        self.root.to(device)


def own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Plain attributes too: a model may keep a mask, or count something of its own."""
    for name, tensor in (
        *parameters_of(module).items(),
        *buffers_of(module).items(),
        *vars(module).items(),
    ):
        if isinstance(tensor, Tensor):
            yield name, tensor
