"""Packages that only some data needs, asked for where the need begins."""

import importlib


def require(module: str, purpose: str) -> None:
    """Refuse in words where a package of the extra ``[applications]`` is not installed.

    Args:
        module: what is imported.
        purpose: what it does here, as the beginning of a sentence.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"{purpose} takes {module}, which is not installed: pip install 'fleetx[applications]'."
        ) from error
