"""The mechanics of ``DistributedStrategy``: names, checks, spellings; no option is named here."""

import warnings
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

import fleetx.strategies  # noqa: F401  (registers the strategies, whose switches exist here)
from fleetx.config import old_spellings
from fleetx.config.advice import ADVICE
from fleetx.config.block import ATTRIBUTE_BLOCKS, Block
from fleetx.config.cadence import with_cadence
from fleetx.config.degrees import degrees, other_options
from fleetx.config.job_options import BLOCKS, JobOptions
from fleetx.plan.compose import Request
from fleetx.plan.option import Config, annotations, check, default, unknown
from fleetx.plan.strategy import REGISTRY


def switches() -> dict[str, type[Config]]:
    """Strategy name -> its options, for every strategy that users may switch."""
    return {name: cls.Config for name, cls in REGISTRY.items() if not cls.internal}


def blocks() -> dict[str, type[Config]]:
    """Block name -> its options: ``amp_configs``, …, ``build_strategy``."""
    owned = {f"{name}_configs": config for name, config in switches().items()}
    return {name: config for name, config in owned.items() if annotations(config)} | BLOCKS


def names() -> list[str]:
    """Every attribute a user may set, old spellings left out."""
    return sorted([*switches(), *blocks(), *annotations(JobOptions)])


class Switchboard:
    """Holds what was chosen; everything else is derived from the registry and the defaults."""

    _on: dict[str, bool]
    _chosen: dict[str, Any]
    _blocks: dict[str, dict[str, Any]]
    _locked: bool

    def __init__(self) -> None:
        # Past __setattr__, which knows only the names that users may set.
        vars(self).update(_on={}, _chosen={}, _blocks={}, _locked=False)

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        self._writable()
        if name in old_spellings.ATTRIBUTES:
            self._set_old(name, old_spellings.ATTRIBUTES[name], value)
        elif name in switches():
            self._on[name] = check(name, bool, value)
        elif name in blocks():
            self._block(name).merge(_mapping(name, value))
        elif name in annotations(JobOptions):
            self._chosen.update(JobOptions.merged({}, {name: _today(name, value)}))
        else:
            raise AttributeError(_no_attribute(name))

    def _set_old(self, name: str, spelling: old_spellings.Spelling, value: Any) -> None:
        if spelling.values is not None:
            if not isinstance(value, str) or value not in spelling.values:
                known = ", ".join(repr(word) for word in spelling.values)
                raise ValueError(f"{name} must be one of {known}, got {value!r}")
            value = spelling.values[value]
        if spelling.caution:
            warnings.warn(spelling.caution, UserWarning, stacklevel=4)
        value = value if spelling.key is None else {spelling.key: value}
        setattr(self, spelling.attribute, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in old_spellings.ATTRIBUTES:
            return self._get_old(old_spellings.ATTRIBUTES[name])
        if name in switches():
            return self._on.get(name, False)
        if name in blocks():
            return self._block(name)
        if name in annotations(JobOptions):
            return self._chosen.get(name, default(JobOptions, name))
        raise AttributeError(_no_attribute(name))

    def _get_old(self, spelling: old_spellings.Spelling) -> Any:
        value = getattr(self, spelling.attribute)
        value = value if spelling.key is None else value[spelling.key]
        back = {new: old for old, new in (spelling.values or {}).items()}
        return back.get(value, value) if back else value

    def _block(self, name: str) -> Block:
        chosen = self._blocks.setdefault(name, {})
        if name in ATTRIBUTE_BLOCKS:
            return ATTRIBUTE_BLOCKS[name](chosen, self._writable)
        return Block(blocks()[name], chosen, self._writable)

    def lock(self) -> None:
        """From now on a model runs under this object, so a change would come too late."""
        vars(self)["_locked"] = True

    def _writable(self) -> None:
        if self._locked:
            raise ValueError(
                "this DistributedStrategy is in force already, so a change would come too late; "
                "set it all before fleet.distributed_model(), or change a copy.deepcopy() of it."
            )

    def request(self) -> Request:
        """What is asked for, as plain data for ``compose``."""
        options: dict[str, Any] = {name: getattr(self, name) for name in annotations(JobOptions)}
        options |= {name: other_options(name, self._block(name)) for name in BLOCKS}
        normal: dict[str, Any] = JobOptions().values()
        normal |= {name: other_options(name, kind().values()) for name, kind in BLOCKS.items()}
        on = [name for name in switches() if self._on.get(name, False)]
        chosen = {name: dict(self._blocks.get(f"{name}_configs", {})) for name in on}
        return Request(
            strategies=with_cadence(chosen),
            options=options,
            changed={name: normal[name] for name in options if options[name] != normal[name]},
            degrees=degrees(self._blocks, on),
            advice=ADVICE,
        )

    def explicit(self) -> dict[str, Any]:
        """What was set by hand, defaults left out: switches, options and blocks by name."""
        filled = {name: dict(chosen) for name, chosen in self._blocks.items() if chosen}
        return dict(self._on) | dict(self._chosen) | filled

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Switchboard):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names())

    __hash__ = None  # type: ignore[assignment]

    @override
    def __getstate__(self) -> dict[str, Any]:
        copied = {name: dict(chosen) for name, chosen in self._blocks.items()}
        return {
            "_on": dict(self._on),
            "_chosen": dict(self._chosen),
            "_blocks": copied,
            "_locked": False,
        }

    @override
    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *names()]


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if isinstance(value, Block):
        return value.explicit()
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict of options, got {value!r}")
    return value


def _today(name: str, value: Any) -> Any:
    words = old_spellings.VALUES.get(name, {})
    return words.get(value, value) if isinstance(value, str) else value


def _no_attribute(name: str) -> str:
    known = [*names(), *old_spellings.ATTRIBUTES]
    return unknown(f"DistributedStrategy has no {name!r}", name, known)
