"""Callers that send wrong bytes, with and without the job's token."""

import contextlib
import random
import socket

from fleetx.ps.wire.frames import Frame
from fleetx.ps.wire.handshake import Claim, greet
from fleetx.ps.wire.pipes import Pipe

_PATIENCE = 5.0


def attack(endpoint: str, token: bytes, chance: random.Random) -> None:
    """One connection: a frame with wrong bytes, or garbage instead of a greeting."""
    host, _, port = endpoint.rpartition(":")
    # A server that was just killed, or hangs up in the middle, is nothing special here.
    with contextlib.suppress(OSError):
        sock = socket.create_connection((host, int(port)), timeout=_PATIENCE)
        pipe = Pipe(sock, stall=_PATIENCE)
        try:
            if chance.random() < 0.3:
                pipe.send(chance.randbytes(chance.choice([1, 44, 76, 500])))
            else:
                greet(token, Claim(0, chance.getrandbits(62)), pipe.read_exactly, pipe.send)
                pipe.send(_mutated(chance), chance.randbytes(64))
        finally:
            pipe.close()


def _mutated(chance: random.Random) -> bytes:
    """A header with some bytes that nobody meant; none that could change what is counted."""
    head = bytearray(Frame(chance.choice([1, 2, 3, 5, 6, 7]), count=2, body=16).packed())
    for _ in range(chance.randrange(1, 5)):
        head[chance.randrange(4, len(head))] = chance.randrange(256)
    return bytes(head)
