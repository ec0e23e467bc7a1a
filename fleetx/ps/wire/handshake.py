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
ENCRYPTED = b"fleetx-tls1\n"
"""What a server that encrypts says to a caller that waits for a greeting in plain words."""
assert len(ENCRYPTED) == len(GREETING)
NONCE = 32
DIGEST = 32
_CLAIM = struct.Struct("<IQ")
OBSERVER = 0xFFFFFFFF
"""What a caller claims to be that is no worker of the job: it looks, and changes nothing."""

Read = Callable[[int], bytes]
"""Returns exactly so many bytes, or raises ``OSError``."""
Write = Callable[[bytes], object]


class RefusedError(ConnectionError):
    """The other end does not know the token."""


class EncryptionError(RefusedError):
    """One end encrypts and the other does not."""


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
    if (greeting := read(len(GREETING))) == ENCRYPTED:
        raise EncryptionError(
            "the server encrypts its connections, and this worker does not; set FLEETX_PS_CERT to "
            "the server's certificate for every worker, or unset it for the servers"
        )
    if greeting != GREETING:
        raise RefusedError("whoever answers there is no server of fleetx")
    theirs, ours = read(NONCE), secrets.token_bytes(NONCE)
    packed_claim = claim.packed()
    write(ours + packed_claim + _proof(token, b"client", theirs, ours, packed_claim))
    try:
        proof = read(DIGEST)
    except (EndedError, ConnectionResetError) as error:  # not a server that is only slow
        raise RefusedError(
            f"the server closed the connection at the greeting ({error}); do both ends have the "
            "same token (FLEETX_PS_TOKEN)?"
        ) from error
    if not hmac.compare_digest(proof, _proof(token, b"server", theirs, ours, packed_claim)):
        raise RefusedError("the server does not know this job's token")


def receive(token: bytes, read: Read, write: Write) -> Claim:
    """The server's side."""
    ours = secrets.token_bytes(NONCE)
    write(GREETING + ours)
    theirs, packed_claim, proof = read(NONCE), read(_CLAIM.size), read(DIGEST)
    if not hmac.compare_digest(proof, _proof(token, b"client", ours, theirs, packed_claim)):
        raise RefusedError("the caller does not know this job's token")
    write(_proof(token, b"server", ours, theirs, packed_claim))
    return Claim(*_CLAIM.unpack(packed_claim))


def _proof(token: bytes, side: bytes, server: bytes, client: bytes, packed_claim: bytes) -> bytes:
    return hmac.digest(token, side + server + client + packed_claim, "sha256")
