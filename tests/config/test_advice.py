"""An option that nothing obeys is refused by its name, with its value and what to do instead."""

from typing import Any

import pytest

import fleetx as fleet
import fleetx.strategies
from fleetx.config.advice import ADVICE
from fleetx.config.degrees import other_options
from fleetx.config.job_options import BLOCKS, JobOptions
from fleetx.plan.option import OneOf, annotations, default, plain_type
from fleetx.plan.strategy import REGISTRY

READ = {name for strategy in REGISTRY.values() for name in strategy.contract.reads}
UNREAD = [name for name in annotations(JobOptions) if name not in READ]
KEYS = [
    (block, key)
    for block, config in BLOCKS.items()
    for key in other_options(block, config().values())
    if block not in READ
]


def another(annotation: Any, normal: Any) -> Any:
    """A legal value that is not the default."""
    for limit in getattr(annotation, "__metadata__", ()):
        if isinstance(limit, OneOf):
            return next(word for word in limit.words if word != normal)
    if plain_type(annotation) is bool:
        return not normal
    if isinstance(normal, tuple):
        return ("somewhere",)
    return "somewhere" if plain_type(annotation) is str else normal + 1


def refusal(strategy: fleet.DistributedStrategy) -> str:
    with pytest.raises(fleet.PlanError) as refused:
        strategy.explain(workers=2)
    return str(refused.value)


@pytest.mark.parametrize("name", UNREAD)
def test_an_option_that_no_strategy_reads_says_what_to_do_instead(name: str) -> None:
    normal = default(JobOptions, name)
    value = another(annotations(JobOptions)[name], normal)
    strategy = fleet.DistributedStrategy()
    setattr(strategy, name, value)
    assert refusal(strategy) == (
        f"strategy.{name} = {value!r} cannot be in force: {ADVICE[name]} Leave it at {normal!r}."
    )


@pytest.mark.parametrize(("block", "key"), KEYS)
def test_of_a_block_the_key_is_named(block: str, key: str) -> None:
    normal = default(BLOCKS[block], key)
    value = another(annotations(BLOCKS[block])[key], normal)
    strategy = fleet.DistributedStrategy()
    setattr(strategy, block, {key: value})
    words = refusal(strategy)
    assert words.startswith(f"strategy.{block}[{key!r}] = {value!r} cannot be in force: ")
    assert words.endswith(f" Leave it at {normal!r}.")
    assert "{" not in words, "no whole dict is printed"


def test_all_keys_that_are_not_obeyed_are_named_at_once() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.build_strategy.enable_inplace = True
    strategy.build_strategy.reduce_strategy = 1
    words = refusal(strategy)
    both = "strategy.build_strategy['enable_inplace'] = True and "
    assert words.startswith(both + "strategy.build_strategy['reduce_strategy'] = 1 cannot")
    assert words.endswith("Leave them at False, 0.")


def test_auto_says_who_chooses_and_when() -> None:
    strategy = fleet.DistributedStrategy()
    strategy.auto = True
    words = refusal(strategy)
    assert "chosen by fleet.distributed_model(model, sample=inputs)" in words
    assert "`fleetx plan train.py`" in words
    strategy.auto, strategy.auto_configs = False, {"allow": ["localsgd"]}
    assert "strategy.auto_configs['allow'] = ('localsgd',) cannot be in force" in refusal(strategy)


def test_advice_speaks_of_options_that_exist() -> None:
    assert {*ADVICE} <= {*annotations(JobOptions), *BLOCKS}
