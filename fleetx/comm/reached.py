"""Which parameters got gradients: the one place that watches backward passes."""

from collections.abc import Iterable

from torch import Tensor


class Reached:
    """Notes every parameter whose gradient a backward has added to, until it is told to forget."""

    def __init__(self, parameters: Iterable[Tensor], *, frozen: bool = False) -> None:
        """Watch the parameters that train, and with ``frozen`` those that may train later."""
        self._parameters = [p for p in parameters if p.is_floating_point() or p.is_complex()]
        self._seen: list[Tensor | int] = []
        for parameter in self._parameters:
            trained = parameter.requires_grad
            if not (trained or frozen):
                continue
            parameter.requires_grad_(True)  # only trained ones take hooks
            # A call into C: there are hundreds of parameters, and one of these in each backward.
            parameter.register_post_accumulate_grad_hook(self._seen.append)
            parameter.requires_grad_(trained)

    def __bool__(self) -> bool:
        return bool(self._seen)

    def __len__(self) -> int:
        """How many gradients came, those of a parameter that got several included."""
        return len(self._seen)

    def first(self) -> Tensor:
        """The parameter that was reached first."""
        found = self._seen[0]
        assert isinstance(found, Tensor), "parameters are let go of at the end of a batch"
        return found

    def trains(self) -> bool:
        """Whether a parameter is not frozen now."""
        return any(parameter.requires_grad for parameter in self._parameters)

    def filled(self) -> bool:
        """Whether a parameter has a gradient that is not 0, wherever it came from."""
        found = (parameter.grad for parameter in self._parameters)
        return any(gradient is not None and bool(gradient.norm()) for gradient in found)

    def distinct(self) -> int:
        """How many parameters got gradients."""
        return len(set(map(_number, self._seen)))

    def missing(self) -> list[Tensor]:
        """The parameters that train now and got no gradient."""
        seen = set(map(_number, self._seen))
        return [p for p in self._parameters if p.requires_grad and id(p) not in seen]

    def marks(self, parameters: Iterable[Tensor]) -> bytes:
        """One byte for each parameter that is watched: whether it is among these."""
        wanted = {id(parameter) for parameter in parameters}
        return bytes(id(parameter) in wanted for parameter in self._parameters)

    def forget(self) -> None:
        """Begin anew."""
        self._seen.clear()

    def release(self) -> None:
        """Remember what came, but hold none of it.

        Each parameter has a hook that holds the list; the two would keep a model alive that nobody
        uses.
        """
        self._seen[:] = map(_number, self._seen)


def _number(reached: Tensor | int) -> int:
    return reached if isinstance(reached, int) else id(reached)
