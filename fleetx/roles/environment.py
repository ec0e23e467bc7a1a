"""A reader of environment variables whose complaints name the variable."""

from collections.abc import Mapping

from fleetx.roles.addresses import check_endpoints, join_endpoint


class Environment:
    """One mapping of variables; an empty variable counts as not set."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def has(self, *names: str) -> bool:
        """Whether all of these are set."""
        return all(self.text(name) for name in names)

    def any(self, *names: str) -> bool:
        """Whether one of these is set."""
        return any(self.text(name) for name in names)

    def text(self, name: str, default: str = "") -> str:
        """The value without surrounding blanks."""
        return self._variables.get(name, "").strip() or default

    def need(self, name: str, why: str) -> str:
        """The value, or a complaint that says why it is needed."""
        value = self.text(name)
        if not value:
            raise ValueError(f"{name} is not set, but {why}; set {name}, or unset the others")
        return value

    def number(self, name: str, default: int | None = None, *, why: str = "") -> int:
        """A whole number from 0; without a default the variable must be set."""
        if default is not None and not self.has(name):
            return default
        value = self.need(name, why or "it is needed")
        if not value.isdecimal():
            raise ValueError(
                f"{name}={value!r} is not a number; set {name} to a whole number from 0"
            )
        return int(value)

    def first_number(self, *names: str, default: int) -> int:
        """The first of several variables that is set."""
        return next((self.number(name) for name in names if self.has(name)), default)

    def numbers(self, name: str) -> tuple[int, ...]:
        """A comma list of whole numbers; empty when not set."""
        words = [word.strip() for word in self.text(name).split(",") if word.strip()]
        if not all(word.isdecimal() for word in words):
            raise ValueError(
                f"{name}={self.text(name)!r} is not a list of numbers; write it like 0,1,2"
            )
        return tuple(int(word) for word in words)

    def endpoints(self, name: str) -> tuple[str, ...]:
        """A comma list of host:port; empty when not set."""
        words = [word for word in self.text(name).split(",") if word.strip()]
        return check_endpoints(words, where=name)

    def rank(self, rank_name: str, size_name: str) -> tuple[int, int]:
        """A rank and a size that fit each other."""
        rank = self.number(rank_name, why=f"{size_name} is set")
        size = self.number(size_name, why=f"{rank_name} is set")
        if rank >= size:
            raise ValueError(
                f"{rank_name}={rank} does not fit {size_name}={size}; "
                f"set {rank_name} to a number from 0 to {max(size - 1, 0)}"
            )
        return rank, size

    def agrees(self, name: str, value: int, other: str) -> None:
        """Refuse a variable that is set to something else than what another one says."""
        if self.has(name) and self.number(name) != value:
            raise ValueError(
                f"{name}={self.text(name)} contradicts {other}={value}; "
                f"unset {name} or make them equal"
            )

    def master(self) -> str:
        """MASTER_ADDR and MASTER_PORT as one endpoint; empty when neither is set."""
        if not self.any("MASTER_ADDR", "MASTER_PORT"):
            return ""
        host = self.need("MASTER_ADDR", "MASTER_PORT is set")
        port = self.number("MASTER_PORT", why="MASTER_ADDR is set")
        return check_endpoints([join_endpoint(host, port)], where="MASTER_ADDR and MASTER_PORT")[0]

    def device(self) -> int | None:
        """The CUDA device that the launcher chose; the first one of several."""
        chosen = self.numbers("FLAGS_selected_gpus")
        return chosen[0] if chosen else None
