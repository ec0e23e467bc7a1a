"""Which parameters a list of name patterns means, Paddle's spellings included."""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from fleetx.near_names import near_names
from fleetx.torch_internals import BatchNormBase, InstanceNormBase

LAYERS: dict[str, tuple[type[nn.Module], ...]] = {
    "batch_norm": (BatchNormBase,),
    "group_norm": (nn.GroupNorm,),
    "instance_norm": (InstanceNormBase,),
    "layer_norm": (nn.LayerNorm,),
}
"""How Paddle begins the names of a layer's parameters -> the layer in torch.

There the kind of the layer is part of the name; here it is not, so the module is looked at, too.
"""

BIASES = (".b", ".b_0")
"""How Paddle ends the names of biases.

Taken literally, ``.b`` would be part of ``encoder.block.weight``; it means biases and nothing else.
"""

BIAS = re.compile(r"bias|^b(_\d+)?$")


Owners = Mapping[str, type[nn.Module]]
"""Parameter of the whole model -> the kind of module that has it."""


def excluded_positions(
    patterns: Sequence[str],
    groups: Sequence[Sequence[str]],
    *,
    stages: Sequence[Sequence[str]],
    held: Collection[str],
    owners: Owners,
    label: str,
) -> list[tuple[int, ...]]:
    """Per group, the positions of matching parameters among those that this rank holds.

    A pattern without a match is refused, and so are patterns that leave no parameter over. Both
    are asked of the whole model, so that what one rank refuses, all refuse.

    Args:
        patterns: Parts of names, or one of the spellings above.
        groups: The names of this rank's optimizer's parameters. Some may live on other ranks.
        stages: Those of the optimizers of all stages.
        held: The names of the parameters that this rank holds.
        owners: Of the whole model, whichever rank holds what.
        label: How users spell the option, for the message.
    """
    names = list(dict.fromkeys(name for stage in stages for name in stage))
    found = _found(patterns, names, owners, label)
    here = [[name for name in group if name in held] for group in groups]
    return [tuple(at for at, name in enumerate(group) if name in found) for group in here]


def _found(patterns: Sequence[str], names: Sequence[str], owners: Owners, label: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        matching = [name for name in names if _matches(pattern, name, owners)]
        if not matching:
            raise ValueError(_no_match(pattern, names, owners, label))
        found.update(matching)
    if names and found.issuperset(names):
        raise ValueError(
            f"{label} = {list(patterns)} excludes every parameter, so that no layer would get a "
            "rate of its own; take a pattern out."
        )
    return found


def _matches(pattern: str, name: str, owners: Owners) -> bool:
    if pattern in BIASES:
        return BIAS.search(name.rpartition(".")[2]) is not None
    return pattern in name or issubclass(owners.get(name, nn.Module), LAYERS.get(pattern, ()))


def _no_match(pattern: str, names: Sequence[str], owners: Owners, label: str) -> str:
    words = {word for name in names for word in (name, *name.split("."))}
    # Only layers that the model has: the word that is refused must not be recommended.
    words |= {word for word in LAYERS if any(_matches(word, name, owners) for name in names)}
    near = near_names(pattern, words)
    known = ", ".join(repr(word) for word in near or names[:3])
    which = "the nearest names are" if near else "parameters are called"
    return (
        f"{label} has {pattern!r}, which matches no parameter of the optimizer, so it would have "
        f"no effect; {which} {known}. Correct the pattern or take it out."
    )
