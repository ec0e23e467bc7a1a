"""Found through PYTHONPATH in processes of a run of an old script: it hands over to fleetx."""

import importlib
import sys

from fleetx.compat.imports import install

install()
sys.modules[__name__] = importlib.import_module("fleetx.compat.paddlenlp")
