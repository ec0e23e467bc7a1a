"""Role makers whose answers the script itself spells out."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from typing_extensions import override

from fleetx.near_names import did_you_mean
from fleetx.roles.addresses import check_endpoints
from fleetx.roles.environment import Environment
from fleetx.roles.role import Identity, Role, RoleMaker, refusal

_OLD_ORDER = ("current_id", "role", "worker_num", "server_endpoints")
_NEW_ORDER = ("is_collective", "init_gloo")
_KNOWN = (*_NEW_ORDER, *_OLD_ORDER, "worker_endpoints", "environ")


class UserDefinedRoleMaker(RoleMaker):
    """Every process is told its place by the script.

    Both forms of the documents are understood: `UserDefinedRoleMaker(current_id, role, worker_num,
    server_endpoints)` and `UserDefinedRoleMaker(is_collective, init_gloo, current_id=..., role=...,
    worker_num=..., worker_endpoints=..., server_endpoints=...)`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Check everything at once.

        Args:
            args: the positional arguments of either form.
            kwargs: `is_collective`, `init_gloo`, `current_id`, `role`, `worker_num`,
                `server_endpoints`, `worker_endpoints`; `environ` replaces the process's variables.
        """
        given = _by_name(args, kwargs)
        self._environ: Mapping[str, str] = given.pop("environ", None) or os.environ
        self._init_gloo = _flag(given, "init_gloo")
        self._identity = self._collective(given) if _flag(given, "is_collective") else _job(given)
        self._identity = self._meet(self._identity)

    @override
    def identity(self) -> Identity:
        return self._identity

    @staticmethod
    def _collective(given: dict[str, Any]) -> Identity:
        if given.get("server_endpoints"):
            raise ValueError(
                "UserDefinedRoleMaker(is_collective=True) has no servers, but server_endpoints is "
                "given; drop it, or use is_collective=False"
            )
        role = _role(given)
        if role is not Role.WORKER:
            raise ValueError(
                "UserDefinedRoleMaker(is_collective=True, role=Role.SERVER): a collective job has "
                "only workers; use Role.WORKER, or is_collective=False"
            )
        return _collective(given)

    def _meet(self, found: Identity) -> Identity:
        """Add the place where workers meet, if anybody named one."""
        place = found.worker_endpoints[0] if found.worker_endpoints else self._master()
        if self._init_gloo and found.worker_num > 1 and not place:
            raise ValueError(
                "UserDefinedRoleMaker(init_gloo=True) asks for a group of the workers, but no "
                "worker can find the others; pass worker_endpoints=[...], one for each worker"
            )
        return replace(found, rendezvous=place)

    def _master(self) -> str:
        return Environment(self._environ).master()


class UserDefinedCollectiveRoleMaker(RoleMaker):
    """A collective job whose workers are listed by the script."""

    def __init__(self, current_id: int = 0, worker_endpoints: list[str] | None = None) -> None:
        self._identity = _collective(
            {"current_id": current_id, "worker_endpoints": worker_endpoints}
        )

    @override
    def identity(self) -> Identity:
        return self._identity


def _by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Give the positional arguments their names; a leading bool tells the newer form."""
    order = _NEW_ORDER if args and isinstance(args[0], bool) else _OLD_ORDER
    if len(args) > len(order):
        raise TypeError(
            f"UserDefinedRoleMaker takes {', '.join(order)} by position, but got {len(args)} "
            "arguments; pass the others by name"
        )
    given = dict(zip(order, args, strict=False))
    for name in kwargs:
        if name in given:
            raise TypeError(f"UserDefinedRoleMaker got {name} twice; pass it once")
        if name not in _KNOWN:
            hint = did_you_mean(name, _KNOWN)
            raise TypeError(f"UserDefinedRoleMaker has no argument {name}; {hint}")
    return given | kwargs


def _flag(given: dict[str, Any], name: str) -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} is not a bool; pass True or False")
    return value


def _job(given: dict[str, Any]) -> Identity:
    """The identity in a parameter-server job."""
    servers = _endpoints(given, "server_endpoints")
    workers = _endpoints(given, "worker_endpoints") if given.get("worker_endpoints") else ()
    role = _role(given)
    worker_num = _worker_num(given, workers)
    index = _whole(given, "current_id", 0)
    peers, listed = (
        (len(servers), "server_endpoints") if role is Role.SERVER else (worker_num, "worker_num")
    )
    if index >= peers:
        raise ValueError(
            f"current_id={index} does not fit role={role.name} with {peers} in {listed}; "
            f"pass a number from 0 to {peers - 1}"
        )
    return Identity(
        source="the script (UserDefinedRoleMaker)",
        is_collective=False,
        role=role,
        index=index,
        worker_num=worker_num,
        worker_endpoints=workers,
        server_endpoints=servers,
    )


def _collective(given: dict[str, Any]) -> Identity:
    workers = _endpoints(given, "worker_endpoints")
    index = _whole(given, "current_id", 0)
    if index >= len(workers):
        raise ValueError(
            f"current_id={index} does not fit the {len(workers)} worker_endpoints; "
            f"pass a number from 0 to {len(workers) - 1}"
        )
    return Identity(
        source="the script (role maker with endpoints)",
        is_collective=True,
        index=index,
        worker_num=_worker_num(given, workers),
        worker_endpoints=workers,
        rendezvous=workers[0],
    )


def _endpoints(given: dict[str, Any], name: str) -> tuple[str, ...]:
    listed = given.get(name)
    if not isinstance(listed, list | tuple):
        raise TypeError(
            f"{name}={listed!r} is not a list; pass a list of strings such as ['127.0.0.1:6001']"
        )
    for endpoint in listed:
        if not isinstance(endpoint, str):
            raise TypeError(
                f"{name} holds {endpoint!r}, which is not a string; pass host:port as text"
            )
    if not listed:
        raise ValueError(f"{name} is empty; list at least one host:port")
    return check_endpoints(listed, where=name)


def _role(given: dict[str, Any]) -> Role:
    role = given.get("role", Role.WORKER)
    if isinstance(role, bool) or not isinstance(role, int) or role not in list(Role):
        raise TypeError(f"role={role!r} is not a Role; pass Role.WORKER or Role.SERVER")
    if role not in (Role.WORKER, Role.SERVER):
        raise ValueError(refusal(Role(role)))
    return Role(role)


def _whole(given: dict[str, Any], name: str, least: int) -> int:
    value = given.get(name, 0)
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}={value!r} is not an int; pass a whole number")
    if value < least:
        raise ValueError(f"{name}={value} is too small; pass {least} or more")
    return value


def _worker_num(given: dict[str, Any], workers: tuple[str, ...]) -> int:
    if workers and "worker_num" not in given:
        return len(workers)
    count = _whole(given, "worker_num", 1)
    if workers and count != len(workers):
        raise ValueError(
            f"worker_num={count} contradicts the {len(workers)} worker_endpoints; "
            "make them equal, or drop worker_num"
        )
    return count
