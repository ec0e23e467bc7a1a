"""Both ends prove that they know the job's token before anything else is read.

Without TLS this authenticates the start of a connection, not each later byte.
"""

import hmac
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass

from fleetx.ps.wire.pipes import EndedError

GREETING = b"fleetx-ps-1\n"
NONCE = 32
DIGEST = 32
_CLAIM = struct.Struct("<IQ")

Read = Callable[[int], bytes]
"""Returns exactly so many bytes, or raises ``OSError``."""
Write = Callable[[bytes], object]


class RefusedError(ConnectionError):
    """The other end does not know the token."""


@dataclass(frozen=True)
class Claim:
    """Who is calling."""

    worker: int
    client: int
    """Drawn at random by each client, to number its changes."""

    def packed(self) -> bytes:
        """The bytes of it."""
        return _CLAIM.pack(self.worker, self.client)

    @staticmethod
    def unpacked(data: memoryview) -> tuple["Claim", memoryview]:
        """The claim at the beginning of some bytes, and the rest of them."""
        return Claim(*_CLAIM.unpack(data[: _CLAIM.size])), data[_CLAIM.size :]


def greet(token: bytes, claim: Claim, read: Read, write: Write) -> None:
    """The client's side."""
    if read(len(GREETING)) != GREETING:
        raise RefusedError("whoever answers there is no server of fleetx")
    theirs, ours = read(NONCE), secrets.token_bytes(NONCE)
    said = claim.packed()
    write(ours + said + _proof(token, b"client", theirs, ours, said))
    try:
        proof = read(DIGEST)
    except (EndedError, ConnectionResetError) as error:  # not a server that is only slow
        raise RefusedError(
            f"the server closed the connection at the greeting ({error}); do both ends have the "
            "same token (FLEETX_PS_TOKEN)?"
        ) from error
    if not hmac.compare_digest(proof, _proof(token, b"server", theirs, ours, said)):
        raise RefusedError("the server does not know this job's token")


def receive(token: bytes, read: Read, write: Write) -> Claim:
    """The server's side."""
    ours = secrets.token_bytes(NONCE)
    write(GREETING + ours)
    theirs, said, proof = read(NONCE), read(_CLAIM.size), read(DIGEST)
    if not hmac.compare_digest(proof, _proof(token, b"client", ours, theirs, said)):
        raise RefusedError("the caller does not know this job's token")
    write(_proof(token, b"server", ours, theirs, said))
    return Claim(*_CLAIM.unpack(said))


def _proof(token: bytes, side: bytes, server: bytes, client: bytes, said: bytes) -> bytes:
    return hmac.digest(token, side + server + client + said, "sha256")
