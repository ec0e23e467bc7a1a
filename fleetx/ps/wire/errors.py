"""Errors that a server reports by name and a client raises again."""


class PeerLostError(RuntimeError):
    """A worker that others wait for is dead."""
