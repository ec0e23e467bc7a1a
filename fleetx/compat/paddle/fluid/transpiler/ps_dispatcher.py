"""``paddle.fluid.transpiler.ps_dispatcher``: how parameters are dealt out to servers."""


class RoundRobin:
    """In turn."""


class HashName:
    """By the hash of the name."""
