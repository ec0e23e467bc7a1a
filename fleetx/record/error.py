"""The error of what a program cannot hold."""


class ProgramError(ValueError):
    """Something cannot be recorded, lowered or run; the message says where and what to write."""
