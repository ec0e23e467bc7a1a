"""``six``, which came with Paddle: what it gave on Python 3, for machines that do not have it."""

import builtins
import io
import operator
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from fleetx.compat.six import moves

__all__ = ["moves"]

PY2, PY3, PY34 = False, True, True
string_types = (str,)
integer_types = (int,)
class_types = (type,)
text_type, binary_type = str, bytes
StringIO, BytesIO = io.StringIO, io.BytesIO
next = advance_iterator = builtins.next
callable = builtins.callable
unichr, int2byte = chr, operator.methodcaller("to_bytes", 1, "big")
byte2int, indexbytes, iterbytes = operator.itemgetter(0), operator.getitem, iter
get_function_code = operator.attrgetter("__code__")
get_function_defaults = operator.attrgetter("__defaults__")
get_method_self = operator.attrgetter("__self__")
get_method_function = operator.attrgetter("__func__")


def iteritems(d: Mapping[Any, Any], **kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Keys and values."""
    return iter(d.items(**kwargs))


def iterkeys(d: Mapping[Any, Any], **kwargs: Any) -> Iterator[Any]:
    """Keys."""
    return iter(d.keys(**kwargs))


def itervalues(d: Mapping[Any, Any], **kwargs: Any) -> Iterator[Any]:
    """Values."""
    return iter(d.values(**kwargs))


def viewkeys(d: Mapping[Any, Any]) -> Any:
    """Keys."""
    return d.keys()


def viewvalues(d: Mapping[Any, Any]) -> Any:
    """Values."""
    return d.values()


def viewitems(d: Mapping[Any, Any]) -> Any:
    """Keys and values."""
    return d.items()


def b(s: str) -> bytes:
    """Bytes of a literal."""
    return s.encode("latin-1")


def u(s: str) -> str:
    """Text of a literal."""
    return s


def ensure_binary(s: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> bytes:
    """Bytes of either."""
    return s.encode(encoding, errors) if isinstance(s, str) else s


def ensure_str(s: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Text of either."""
    return s.decode(encoding, errors) if isinstance(s, bytes) else s


ensure_text = ensure_str


def reraise(tp: Any, value: BaseException | None, tb: Any = None) -> NoReturn:
    """Raise what was caught."""
    raise (tp() if value is None else value).with_traceback(tb)


def raise_from(value: BaseException, from_value: BaseException | None) -> NoReturn:
    """Raise because of another error."""
    raise value from from_value


def with_metaclass(meta: Any, *bases: type) -> Any:
    """A class to derive from, whose class is ``meta``."""
    return meta("temporary_class", bases or (object,), {})


def add_metaclass(metaclass: Any) -> Any:
    """Make a class anew with this class of its own."""

    def wrapper(cls: type) -> Any:
        gone = {"__dict__", "__weakref__"}
        body = {name: value for name, value in vars(cls).items() if name not in gone}
        return metaclass(cls.__name__, cls.__bases__, body)

    return wrapper


def python_2_unicode_compatible(cls: type) -> type:
    """The class as it is."""
    return cls


def print_(*args: Any, **kwargs: Any) -> None:
    """``print``."""
    print(*args, **kwargs)  # noqa: T201


exec_ = builtins.exec
