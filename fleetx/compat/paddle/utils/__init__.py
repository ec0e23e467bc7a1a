"""``paddle.utils``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.utils.lazy_import": "try_import",
        "paddle.utils.install_check": "run_check",
        "paddle.utils.deprecation": "deprecated require_version",
    },
    modules=["download", "install_check", "lazy_import", "unique_name"],
)
