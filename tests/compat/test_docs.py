"""The page about old scripts says what is so."""

import re
from pathlib import Path

import pytest

from fleetx import static
from fleetx.compat import imports, modes
from fleetx.compat.coverage import table
from fleetx.compat.porting import port
from tests.compat.test_names import NAMES, NOT_COVERED

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_table_is_the_one_that_is_generated() -> None:
    found = re.search(r"<!-- coverage -->\n(.*)\n<!-- end", PAGE.read_text(), re.DOTALL)
    assert found
    assert found[1] == table(), "python -m fleetx.compat.coverage says otherwise"


def test_the_count_is_true() -> None:
    covered = len(NAMES) - len(NOT_COVERED)
    assert f"Of {len(NAMES)} functions" in PAGE.read_text()
    assert f"<!-- used -->{covered}<!-- -->" in PAGE.read_text()


def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    old, native = blocks()
    exec(old, {"__name__": "__main__"})
    assert "step2 cost = 0." in capsys.readouterr().out
    static.reset()
    modes.forget()
    imports.uninstall()
    exec(native, {"__name__": "__main__"})


def test_the_native_script_is_what_port_writes() -> None:
    old, native = blocks()
    written = port(old).text
    first = ", weight_attr=torch.nn.init.xavier_uniform_, bias_attr=torch.nn.init.zeros_"
    for line in native.splitlines()[3:]:
        assert line in written.replace(first, "").replace("torch.mean(input=", "torch.mean("), line
