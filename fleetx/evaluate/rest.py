"""The Open Inference Protocol v2 over HTTP."""

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import quote

import numpy as np

from fleetx.evaluate.service import Array, ServiceError, vectors_in


class RestService:
    """A model behind ``/v2/models/NAME/infer``."""

    def __init__(
        self, endpoint: str, model: str, *, input_name: str | None, timeout: float
    ) -> None:
        self._endpoint, self._timeout = endpoint.rstrip("/"), timeout
        self._model = f"{self._endpoint}/v2/models/{quote(model, safe='')}"
        # An environment's proxy is for the world outside, and none is asked for by the user here.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._input = input_name

    def infer(self, batch: Array) -> Array:
        """The first output for a batch."""
        tensor = {
            "name": self._input_name(),
            "shape": list(batch.shape),
            "datatype": "FP32",
            "data": batch.reshape(-1).tolist(),
        }
        answer = self._ask(f"{self._model}/infer", {"inputs": [tensor]})
        try:
            output = answer["outputs"][0]
            values = np.asarray(output["data"], np.float32).reshape(-1)
            shape = [int(size) for size in output["shape"]]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServiceError(
                f"{self._endpoint} answered without a tensor of numbers ({error!r}); it must "
                "speak the Open Inference Protocol v2."
            ) from error
        return vectors_in(values, shape, len(batch), self._endpoint)

    def _input_name(self) -> str:
        """As the model declares it; not every server tells."""
        if self._input is None:
            declared = self._ask(self._model, None).get("inputs") or [{}]
            self._input = declared[0].get("name", "input")
        return self._input

    def _ask(self, url: str, body: dict[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with self._opener.open(request, timeout=self._timeout) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            said = error.read(300).decode(errors="replace").strip()
            raise ServiceError(f"{url} answered {error.code} {error.reason}: {said}") from error
        except (OSError, TimeoutError) as error:
            reason = getattr(error, "reason", error)
            raise ServiceError(
                f"nothing answers at {self._endpoint} ({reason}); start the service, or correct "
                "--endpoint."
            ) from error
        except HTTPException as error:
            raise ServiceError(
                f"{self._endpoint} does not speak HTTP ({type(error).__name__}); give the port for "
                "REST, or grpc://host:port if this is the one for gRPC."
            ) from error
        except ValueError as error:
            raise ServiceError(
                f"{url} did not answer with JSON ({error}); it must speak the Open Inference "
                "Protocol v2."
            ) from error
        if not isinstance(answer, dict):
            raise ServiceError(f"{url} answered {answer!r:.80}, which is no JSON object.")
        return answer
