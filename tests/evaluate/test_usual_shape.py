"""The shape of images is read from the export, and one without a signature is refused."""

from pathlib import Path

import pytest

from fleetx.evaluate.models import usual_shape
from tests.evaluate.small import SIDE, export, net


def test_it_is_that_of_the_export_or_imagenets(tmp_path: Path) -> None:
    assert usual_shape("ResNet50") == (3, 224, 224)
    export(net().eval(), tmp_path)
    assert usual_shape(str(tmp_path)) == (3, SIDE, SIDE)
    (tmp_path / "signature.json").unlink()
    with pytest.raises(ValueError, match=r"has model\.pt2 and no signature\.json.*--image_shape"):
        usual_shape(str(tmp_path))
