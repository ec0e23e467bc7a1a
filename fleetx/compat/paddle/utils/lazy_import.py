"""``paddle.utils.try_import``."""

import importlib
from typing import Any


def try_import(module_name: str, err_msg: str | None = None) -> Any:
    """A module, or an error that says what to install."""
    try:
        return importlib.import_module(module_name)
    except ImportError as error:
        install = {"cv2": "opencv-python-headless"}.get(module_name, module_name)
        raise ImportError(
            err_msg or f"{module_name} is needed and not installed; `pip install {install}`."
        ) from error
