"""Weights that Paddle would have downloaded."""


def refuse(name: str, pretrained: bool) -> None:
    """Nothing is downloaded: weights come from a file of the script's."""
    if pretrained:
        raise ValueError(
            f"{name}(pretrained=True) would download weights from Paddle's servers, which nothing "
            "here does; build it with pretrained=False and call "
            "model.set_state_dict(paddle.load('weights.pdparams'))."
        )
