"""``paddle.optimizer``."""

from fleetx.compat.tables import table

__getattr__, __dir__ = table(
    __name__,
    {
        "paddle.optimizer.optimizer": "Optimizer SGD Momentum Adam AdamW Adamax Adagrad RMSProp "
        "Adadelta Lamb",
        "paddle.optimizer.lr": [
            "_LRScheduler = LRScheduler",
            "NoamLR = NoamDecay",
            "PiecewiseLR = PiecewiseDecay",
            "NaturalExpLR = NaturalExpDecay",
            "InverseTimeLR = InverseTimeDecay",
            "PolynomialLR = PolynomialDecay",
            "LinearLrWarmup = LinearWarmup",
            "ExponentialLR = ExponentialDecay",
            "MultiStepLR = MultiStepDecay",
            "StepLR = StepDecay",
            "LambdaLR = LambdaDecay",
            "ReduceLROnPlateau = ReduceOnPlateau",
            "CosineAnnealingLR = CosineAnnealingDecay",
        ],
    },
    modules=["lr"],
)
