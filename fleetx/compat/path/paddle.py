"""Found through PYTHONPATH in processes of a run of an old script: it hands over to fleetx."""

import importlib
import sys

from fleetx.compat import tensors
from fleetx.compat.imports import install

install()
tensors.install()
sys.modules[__name__] = importlib.import_module("fleetx.compat.paddle")
