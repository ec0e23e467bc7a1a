"""``paddle.fluid.contrib.mixed_precision.fp16_lists``."""

from collections.abc import Iterable
from typing import Any


class AutoMixedPrecisionLists:
    """Operators that compute in half precision, and those that do not."""

    def __init__(
        self,
        custom_white_list: Iterable[str] | None = None,
        custom_black_list: Iterable[str] | None = None,
        custom_black_varnames: Iterable[str] | None = None,
    ) -> None:
        self.white = sorted(custom_white_list or ())
        self.black = sorted(custom_black_list or ())
        self.black_varnames = sorted(custom_black_varnames or ())

    def options(self) -> dict[str, Any]:
        """As ``amp_configs`` has them."""
        listed = {
            "custom_white_list": self.white,
            "custom_black_list": self.black,
            "custom_black_varnames": self.black_varnames,
        }
        return {name: value for name, value in listed.items() if value}


CustomOpLists = AutoMixedPrecisionLists
