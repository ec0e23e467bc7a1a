"""The error of a plan that cannot be carried out."""


class PlanError(ValueError):
    """The strategies asked for cannot train together; the message says what to change."""
