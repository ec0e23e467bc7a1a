"""A block of options as users see it: a mapping that checks what is put into it."""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, ClassVar

from typing_extensions import override

from fleetx.config.job_options import BuildConfig, ExecutionConfig
from fleetx.config.old_spellings import current_keys
from fleetx.expected import MAPPING, expect
from fleetx.plan.option import Config, annotations, default, unknown


def _unguarded() -> None:
    pass


class Block(MutableMapping[str, Any]):
    """A live view: writing to it writes to the strategy it came from."""

    _config: type[Config]
    _chosen: dict[str, Any]
    _guard: Callable[[], None]

    def __init__(
        self,
        config: type[Config],
        chosen: dict[str, Any],
        guard: Callable[[], None] = _unguarded,
    ) -> None:
        # Past __setattr__, which a subclass gives to its options.
        vars(self).update(_config=config, _chosen=chosen, _guard=guard)

    def merge(self, options: Mapping[str, Any]) -> None:
        """Change the listed options together; the others keep their values."""
        self._guard()
        fresh = current_keys(self._config.label, options)
        merged = self._config.merged(self._chosen, fresh)
        self._chosen.clear()
        self._chosen.update(merged)

    def explicit(self) -> dict[str, Any]:
        """The options that were set by hand."""
        return dict(self._chosen)

    @override
    def __getitem__(self, name: str) -> Any:
        if name not in annotations(self._config):
            known = annotations(self._config)
            raise KeyError(unknown(f"{self._config.label} has no option {name!r}", name, known))
        return self._chosen.get(name, default(self._config, name))

    @override
    def __setitem__(self, name: str, value: Any) -> None:
        self.merge({name: value})

    @override
    def __delitem__(self, name: str) -> None:
        """Back to the default."""
        self._guard()
        self[name]
        rest = {key: value for key, value in self._chosen.items() if key != name}
        self._config.merged(rest, {})  # what is left must make sense by itself
        self._chosen.pop(name, None)

    @override
    def clear(self) -> None:
        """Everything back to its default."""
        self._guard()
        self._chosen.clear()

    @override
    def popitem(self) -> tuple[str, Any]:
        raise TypeError(
            f"an option cannot be taken out of {self._config.label}, it only goes back to its "
            "default; use del or clear()."
        )

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(annotations(self._config))

    @override
    def __len__(self) -> int:
        return len(annotations(self._config))

    @override
    def __repr__(self) -> str:
        return repr(dict(self))


class _AttributeBlock(Block):
    """A block whose options are attributes, as in ``strategy.num_threads = 4``."""

    KIND: ClassVar[type[Config]]

    def __init__(
        self, chosen: dict[str, Any] | None = None, guard: Callable[[], None] = _unguarded
    ) -> None:
        chosen = {} if chosen is None else chosen
        expect(type(self).__name__, "chosen", chosen, MAPPING.such_as("a dict of options"))
        self.KIND.merged({}, chosen)  # what is wrong is said now, and not when it is read
        super().__init__(self.KIND, chosen, guard)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in annotations(self.KIND):
            raise AttributeError(
                unknown(f"{type(self).__name__} has no {name!r}", name, annotations(self.KIND))
            )
        return self[name]

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        if name not in annotations(self.KIND):
            raise AttributeError(
                unknown(f"{type(self).__name__} has no {name!r}", name, annotations(self.KIND))
            )
        self[name] = value

    @override
    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *annotations(self.KIND)]


class BuildStrategy(_AttributeBlock):
    """How a program is rewritten before it runs."""

    KIND = BuildConfig


class ExecutionStrategy(_AttributeBlock):
    """How a program is run."""

    KIND = ExecutionConfig


ATTRIBUTE_BLOCKS: dict[str, type[_AttributeBlock]] = {
    block.KIND.label: block for block in (BuildStrategy, ExecutionStrategy)
}
