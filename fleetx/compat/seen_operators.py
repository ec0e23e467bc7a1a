"""Operators of a program, as scripts look at them."""

from typing import Any

from torch import fx
from typing_extensions import override

from fleetx.record.error import ProgramError


class Operator:
    """One operator, to look at."""

    def __init__(self, block: Any, node: fx.Node) -> None:
        self.block, self._node = block, node

    @property
    def type(self) -> str:
        """The function of torch."""
        target = self._node.target
        return str(getattr(target, "__name__", target)).strip("_")

    @property
    def input_arg_names(self) -> list[str]:
        """The variables that it takes."""
        return [self.block.program.name_of(node) for node in self._node.all_input_nodes]

    @property
    def output_arg_names(self) -> list[str]:
        """The variables that it gives."""
        return [self.block.program.name_of(self._node)]

    input_names, output_names = ("X",), ("Out",)

    @property
    def desc(self) -> "OperatorDesc":
        """The same, for scripts that ask Paddle's description of it."""
        return OperatorDesc(self)

    def input(self, name: str = "") -> list[str]:
        """The same; operators of torch do not name their inputs as Paddle does."""
        return self.input_arg_names

    def output(self, name: str = "") -> list[str]:
        """The variables that it gives."""
        return self.output_arg_names

    def attr(self, name: str) -> Any:
        """What is noted of it: the device, or a keyword of the call; None for what is not."""
        noted = {"op_device": self._node.meta.get("device") or "", "op_role": 0}
        return noted.get(name, self._node.kwargs.get(name))

    def has_attr(self, name: str) -> bool:
        """Whether something is noted under this name."""
        return name in {"op_device", "op_role"} or name in self._node.kwargs

    def all_attrs(self) -> dict[str, Any]:
        """Everything that is noted."""
        return {"op_device": self.attr("op_device"), "op_role": 0, **self._node.kwargs}

    @property
    def attr_names(self) -> list[str]:
        """The names of that."""
        return list(self.all_attrs())

    def _set_attr(self, name: str, value: Any) -> None:
        if name != "op_device":
            raise ProgramError(
                f"operator {self.type!r}: {name} cannot be set afterwards; pass it to the layer."
            )
        self._node.meta["device"] = value

    @override
    def __repr__(self) -> str:
        return f"{self.output_arg_names} = {self.type}({self.input_arg_names})"


class OperatorDesc:
    """``op.desc``: what an operator is and takes, as calls."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def type(self) -> str:
        """The function of torch."""
        return self._operator.type

    def input_arg_names(self) -> list[str]:
        """The variables that it takes."""
        return self._operator.input_arg_names

    def output_arg_names(self) -> list[str]:
        """The variables that it gives."""
        return self._operator.output_arg_names

    def attr(self, name: str) -> Any:
        """What is noted of it under a name."""
        return self._operator.attr(name)
