"""LocalSGD: replicas update alone and average their weights from time to time."""

from fleetx.strategies.localsgd.adaptive import AdaptiveLocalSGD
from fleetx.strategies.localsgd.localsgd import LocalSGD

__all__ = ["AdaptiveLocalSGD", "LocalSGD"]
