"""Options: what is accepted, what is refused, and in which words."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from fleetx.plan.option import Above, AtLeast, Below, Config, OneOf, Unset, check, unknown


@dataclass(frozen=True, kw_only=True)
class Sample(Config):
    label = "sample_configs"
    flag: bool = False
    count: Annotated[int, AtLeast(1)] = 1
    share: Annotated[float, Above(0), Below(1)] = 0.5
    degree: Annotated[int, Unset(-1), AtLeast(1)] = -1
    word: Annotated[str, OneOf(("a", "b"))] = "a"
    names: tuple[str, ...] = ()
    shape: Annotated[tuple[int, ...], AtLeast(1)] = ()


def test_values_come_in_normal_form() -> None:
    sample = Sample(share=0.25, names=["x", "y"], shape=(3, 4))  # type: ignore[arg-type]
    assert sample.names == ("x", "y")
    assert sample.shape == (3, 4)
    assert check("ratio", float, 2) == 2.0
    assert isinstance(check("ratio", float, 2), float)
    assert check("names", tuple[str, ...], None) == ()


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("flag", 1, TypeError, "sample_configs['flag'] must be True or False, got 1"),
        ("count", True, TypeError, "sample_configs['count'] must be a whole number, got True"),
        ("count", 1.0, TypeError, "must be a whole number"),
        ("count", 0, ValueError, "sample_configs['count'] must be at least 1, got 0"),
        ("share", "x", TypeError, "must be a number, got 'x'"),
        ("share", 0, ValueError, "must be above 0, got 0"),
        ("share", 1.0, ValueError, "must be below 1, got 1.0"),
        ("degree", 0, ValueError, "must be at least 1, got 0"),
        ("degree", -2, ValueError, "must be at least 1, got -2"),
        ("word", "c", ValueError, "must be one of 'a', 'b', got 'c'"),
        ("names", "xyz", TypeError, "must be a list of strings, got 'xyz'"),
        ("names", ["x", 1], TypeError, "each item of sample_configs['names'] must be a string"),
        ("names", {"x": 1}, TypeError, "must be a list of strings"),
        ("shape", [3, 0], ValueError, "must be at least 1, got [3, 0]"),
    ],
)
def test_a_wrong_value_is_refused_in_words(
    name: str, value: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error) as caught:
        Sample(**{name: value})
    assert words in str(caught.value)


def test_unset_escapes_the_limits() -> None:
    assert Sample(degree=-1).degree == -1
    assert Sample(degree=8).degree == 8


def test_merging_keeps_other_options_and_replaces_lists() -> None:
    first = Sample.merged({}, {"count": 3, "names": ["x"]})
    assert Sample.merged(first, {"names": ["y"]}) == {"count": 3, "names": ("y",)}


def test_merging_refuses_an_unknown_name_with_the_nearest_one() -> None:
    with pytest.raises(ValueError, match=r"sample_configs has no option 'cuont'.*'count'"):
        Sample.merged({}, {"cuont": 1})


def test_unknown_lists_all_names_when_none_is_near() -> None:
    assert unknown("no such thing", "zzz", ["beta", "alpha"]) == (
        "no such thing; known: alpha, beta."
    )
