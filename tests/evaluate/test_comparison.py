"""What counts as agreement, in numbers that can be checked by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleetx.evaluate.class_names import class_names
from fleetx.evaluate.comparison import Comparison, Limits, compare
from fleetx.evaluate.report import Report, Worst
from fleetx.evaluate.service import Array


def judged(offline: object, online: object, **limits: float) -> Comparison:
    one, other = (np.array(given, np.float32) for given in (offline, online))
    return compare(one, other, Limits(**{"top_k": 1, **limits}))  # type: ignore[arg-type]


def test_equal_vectors_agree() -> None:
    found = judged([[1, 2], [0, 0]], [[1, 2], [0, 0]])
    assert found.complaints == []
    assert found.cosine.tolist() == [1, 1]
    assert found.top_k_agreement == 1


def test_the_numbers_are_those_of_the_formulas() -> None:
    found = judged([[3, 4], [100, 0]], [[4, 3], [101, 0]], top_k=2)
    assert found.max_abs.tolist() == [1, 1]
    np.testing.assert_allclose(found.relative, [0.25, 0.01])
    np.testing.assert_allclose(found.cosine, [24 / 25, 1], rtol=1e-6)
    assert found.top_k.tolist() == [1, 1]
    assert found.worst(2) == [0, 1]


@pytest.mark.parametrize(
    ("online", "words"),
    [
        ([[1.0, 2.1]], "a number is 0.1 away"),
        ([[-1.0, 2.0]], "a cosine is 0.6"),
        ([[2.01, 2.0]], "the top 1 agree for 0.00% of the inputs only"),
        ([[1.0, np.nan]], "some numbers are not finite"),
        ([[1.0, np.inf]], "some numbers are not finite"),
    ],
)
def test_each_limit_can_fail(online: list[list[float]], words: str) -> None:
    assert any(words in line for line in judged([[1, 2]], online).complaints)


def test_near_ties_may_change_places_and_others_may_not() -> None:
    offline = [[9, 8, 0.0004, 0, -1]]  # numbers may be off by 9e-3 here
    assert judged(offline, [[9, 8, 0, 0.0004, -1]], top_k=3).complaints == []
    apart = judged([[9, 8, 0.01, 0, -1]], [[9, 8, 0.004, 0.006, -1]], top_k=3)
    assert apart.relative.max() < apart.limits.max_abs
    assert apart.complaints == ["the top 3 agree for 0.00% of the inputs only"]
    np.testing.assert_allclose(apart.top_k, [2 / 3], rtol=1e-6)
    assert judged([[9, 8, 0.01, 0, -1]], [[9, 8, 0, 0.01, -1]], top_k=5).top_k.tolist() == [1]


def test_noise_of_the_last_bits_is_no_disagreement() -> None:
    numbers = np.random.default_rng(0)
    offline = (numbers.normal(size=(2000, 1000)) * 2).astype(np.float32)
    online = offline + numbers.normal(size=offline.shape).astype(np.float32) * 2e-4
    ranks = [np.argsort(-each, axis=1)[:, :5] for each in (offline, online)]
    assert (np.sort(ranks[0]) != np.sort(ranks[1])).any(), "there are near ties among them"
    found = compare(offline, online, Limits(max_abs=5e-3))
    assert found.complaints == []


def test_vectors_of_another_length_are_another_model() -> None:
    with pytest.raises(ValueError, match="vectors of 3 numbers, and the file has 2"):
        judged([[1, 2]], [[1, 2, 3]])


def report(online: Array) -> Report:
    comparison = compare(np.ones((1, 2), np.float32), online, Limits(top_k=1))
    worst = [Worst("<b>&.png", float(comparison.max_abs[0]), 0.5, 1.0, [0], [0])]
    return Report("http://x", "net", comparison, worst, [np.zeros((3, 4, 4), np.float32)])


def test_a_report_is_json_for_programs_and_html_for_people() -> None:
    bad = report(np.array([[1, np.nan]], np.float32))
    told = json.loads(bad.to_json())
    assert (told["agree"], told["max_abs"]) == (False, None)
    assert told["worst"][0]["name"] == "<b>&.png"
    page = bad.to_html()
    assert "does NOT agree" in page
    assert "&lt;b&gt;&amp;.png" in page
    assert "<b>&.png" not in page
    assert 'src="data:image/png;base64,' in page
    assert "largest difference of a number" in page
    assert "not finite" in page
    for key in ("max_abs", "min_cosine", "top_k_agreement", "complaints"):
        assert key not in page.replace("(max_abs", ""), "words instead of keys"
    assert (
        "agrees with the offline vectors on all 1 inputs"
        in report(np.ones((1, 2), np.float32)).to_html()
    )


def test_a_page_has_names_of_classes_and_a_distribution() -> None:
    page = replace(report(np.ones((1, 2), np.float32)), classes={0: "tulip"}).to_html()
    assert "offline: tulip (0)" in page
    assert "limit 0.001" in page


def test_classes_are_called_as_a_file_says_or_as_their_folders(tmp_path: Path) -> None:
    names, labels = ["rose/1.png", "rose/2.png", "tulip/1.png", "x.png"], [0, 0, 1, -1]
    assert class_names(tmp_path, names, labels) == {0: "rose", 1: "tulip"}
    assert class_names(tmp_path, ["a/1.png", "b/2.png"], [0, 0]) == {}
    assert class_names(tmp_path, ["1.png", "2.png"], [0, 1]) == {}
    assert class_names(tmp_path, ["all/1.png", "all/2.png"], [0, 1]) == {}
    (tmp_path / "classes.txt").write_text("daisy\n\noak\n")
    assert class_names(tmp_path, names, labels) == {0: "daisy", 2: "oak"}
