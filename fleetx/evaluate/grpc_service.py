"""The Open Inference Protocol v2 over gRPC."""

from typing import Any
from urllib.parse import urlsplit

import numpy as np

from fleetx.evaluate.messages import message
from fleetx.evaluate.service import Array, ServiceError, vectors_in

_LARGEST = 512 * 2**20
"""Bytes of one message; gRPC's own limit of 4 MiB is a few images."""
_FORMATS = {"FP32": np.float32, "FP64": np.float64, "FP16": np.float16}


class GrpcService:
    """A model behind ``inference.GRPCInferenceService``."""

    def __init__(
        self, endpoint: str, model: str, *, input_name: str | None, timeout: float
    ) -> None:
        try:
            import grpc
        except ImportError as error:
            raise ImportError(
                f"--endpoint {endpoint} needs grpcio; install 'fleetx[verify]', or give the "
                "service's http:// address."
            ) from error
        self._grpc: Any = grpc
        self._endpoint, self._model, self._timeout = endpoint, model, timeout
        options = [(f"grpc.max_{way}_message_length", _LARGEST) for way in ("send", "receive")]
        # A proxy of the environment is for the world outside, as in the REST client.
        options.append(("grpc.enable_http_proxy", 0))
        self._channel = grpc.insecure_channel(urlsplit(endpoint).netloc, options=options)
        self._input = input_name

    def infer(self, batch: Array) -> Array:
        """The first output for a batch."""
        request: Any = message("ModelInferRequest")(model_name=self._model)
        request.inputs.add(name=self._input_name(), datatype="FP32", shape=batch.shape)
        request.raw_input_contents.append(batch.astype("<f4").tobytes())
        answer = self._call("ModelInfer", request, "ModelInferResponse")
        if not answer.outputs:
            raise ServiceError(f"{self._endpoint} answered without a tensor; look at its log.")
        output = answer.outputs[0]
        if output.datatype not in _FORMATS:
            raise ServiceError(
                f"{self._endpoint} answered with {output.datatype}; the model must return numbers "
                f"in one of {', '.join(_FORMATS)}."
            )
        return vectors_in(_numbers(answer, output), list(output.shape), len(batch), self._endpoint)

    def _input_name(self) -> str:
        if self._input is None:
            request = message("ModelMetadataRequest")(name=self._model)
            declared = self._call("ModelMetadata", request, "ModelMetadataResponse").inputs
            self._input = declared[0].name if declared else "input"
        return self._input

    def _call(self, method: str, request: Any, answer: str) -> Any:
        kind: Any = message(answer)
        call = self._channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}",
            request_serializer=lambda value: value.SerializeToString(),
            response_deserializer=kind.FromString,
        )
        try:
            return call(request, timeout=self._timeout)
        except self._grpc.RpcError as error:
            if error.code() is self._grpc.StatusCode.UNAVAILABLE:
                raise ServiceError(
                    f"nothing answers at {self._endpoint} ({error.details()}); start the service, "
                    "or correct --endpoint."
                ) from error
            code = error.code().name
            raise ServiceError(f"{self._endpoint} answered {code}: {error.details()}") from error


def _numbers(answer: Any, output: Any) -> Array:
    """Raw bytes, or numbers one by one: a server may choose."""
    if answer.raw_output_contents:
        kind = np.dtype(_FORMATS[output.datatype]).newbyteorder("<")
        return np.frombuffer(answer.raw_output_contents[0], kind).astype(np.float32)
    numbers = output.contents.fp32_contents or output.contents.fp64_contents
    return np.asarray(list(numbers), np.float32)
