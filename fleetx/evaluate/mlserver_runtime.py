"""A runtime for MLServer that serves what ``save_inference_model`` wrote."""

import json
from pathlib import Path
from typing import Any

import torch
from mlserver import MLModel, types
from mlserver.codecs import NumpyCodec
from mlserver.utils import get_model_uri
from typing_extensions import override


class InferenceModel(MLModel):  # type: ignore[misc, unused-ignore]
    """A folder with ``model.pt2`` and ``signature.json`` behind the Open Inference Protocol."""

    @override
    async def load(self) -> bool:
        folder = Path(await get_model_uri(self.settings))  # relative to the settings' own folder
        signature = json.loads((folder / "signature.json").read_text(encoding="utf-8"))
        self._names, self._outputs = list(signature["inputs"]), signature["outputs"]
        self._model = torch.export.load(folder / "model.pt2").module()
        self.inputs = [
            types.MetadataTensor(name=name, datatype="FP32", shape=_sizes(declared["shape"]))
            for name, declared in signature["inputs"].items()
        ]
        return True

    @override
    async def predict(self, payload: Any) -> Any:
        given = {each.name: NumpyCodec.decode_input(each) for each in payload.inputs}
        tensors = [torch.from_numpy(given[name].copy()) for name in self._names]
        with torch.no_grad():
            found = self._model(*tensors)
        values = found if isinstance(found, (tuple, list)) else [found]
        outputs = [
            NumpyCodec.encode_output(name, value.numpy())
            for name, value in zip(self._outputs, values, strict=True)
        ]
        return types.InferenceResponse(model_name=self.name, outputs=outputs)


def _sizes(shape: list[int | None]) -> list[int]:
    """The protocol writes -1 for a free dimension."""
    return [-1 if size is None else size for size in shape]
