"""What servers and workers of a job share in secret, and how they encrypt."""

import contextlib
import os
import secrets
import ssl
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fleetx.roles.addresses import split_endpoint
from fleetx.roles.environment import Environment

TOKEN = "FLEETX_PS_TOKEN"
CERTIFICATE, KEY = "FLEETX_PS_CERT", "FLEETX_PS_KEY"
STATE = "FLEETX_PS_STATE"
METRICS = "FLEETX_PS_METRICS_PORT"
SHORTEST = 16
_CIPHERS = "ECDHE+AES128+AESGCM"
"""A key for each connection, and the cipher that costs servers least."""


def job_token(endpoints: Sequence[str], environ: Mapping[str, str] | None = None) -> bytes:
    """The secret that every process of a job must know.

    A launcher hands one out. Without it, processes of one user on one machine share a file that
    nobody else can read; servers on other addresses need a token that was set by hand.
    """
    given = Environment(os.environ if environ is None else environ).text(TOKEN)
    if given:
        if len(given) < SHORTEST:
            raise ValueError(
                f"{TOKEN} has {len(given)} characters, which can be guessed; set at least "
                f"{SHORTEST}, such as the output of python -c 'import secrets; "
                "print(secrets.token_hex())'"
            )
        return given.encode()
    far = [each for each in endpoints if not _loopback(each)]
    if far:
        raise ValueError(
            f"server {far[0]} can be reached by others, and no token protects it; set {TOKEN} to "
            "the same secret for every process of the job"
        )
    return _private_file()


def _loopback(endpoint: str) -> bool:
    host, _ = split_endpoint(endpoint, where="server endpoints")
    return host == "localhost" or host.startswith("127.") or host == "::1"


def _private_file() -> bytes:
    folder = Path(tempfile.gettempdir()) / f"fleetx-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(
            f"{folder} can be changed by others, so a token there is no secret; remove it, or set "
            f"{TOKEN}"
        )
    path = folder / "token"
    fresh = folder / f"token.{secrets.token_hex(8)}"
    fresh.write_text(secrets.token_hex(32))
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)  # whoever comes first decides, and nobody reads half of it
    fresh.unlink()
    return path.read_bytes()


def server_tls(environ: Mapping[str, str] | None = None) -> ssl.SSLContext | None:
    """How a server encrypts; None when nobody asked for it."""
    env = Environment(os.environ if environ is None else environ)
    if not env.any(CERTIFICATE, KEY):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    why = "servers encrypt when both are set"
    certificate, key = env.need(CERTIFICATE, why), env.need(KEY, why)
    with _explained(f"{CERTIFICATE}={certificate} and {KEY}={key} are", "and its private key"):
        context.load_cert_chain(certificate, key)
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_ciphers(_CIPHERS)
    return context


@contextlib.contextmanager
def _explained(what: str, instead: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of files, and of what is in them
        raise ValueError(
            f"{what} of no use for encryption ({error}); set a certificate in PEM format that "
            f"names the hosts of all servers, {instead}"
        ) from error


def client_tls(environ: Mapping[str, str] | None = None) -> ssl.SSLContext | None:
    """How a worker encrypts, trusting the job's certificate and no other; None as above."""
    env = Environment(os.environ if environ is None else environ)
    if not env.has(CERTIFICATE):
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate = env.text(CERTIFICATE)
    with _explained(f"{CERTIFICATE}={certificate} is", "as the servers have it"):
        context.load_verify_locations(certificate)
    context.set_ciphers(_CIPHERS)
    if hasattr(context, "set_ciphersuites"):  # from Python 3.15 on
        context.set_ciphersuites("TLS_AES_128_GCM_SHA256")
    else:
        # Python cannot choose among the ciphers of TLS 1.3, which takes 256 bits by itself.
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


def metrics_port(environ: Mapping[str, str] | None = None) -> int | None:
    """Where a server shall serve its figures; None for nowhere."""
    env = Environment(os.environ if environ is None else environ)
    return env.number(METRICS) if env.has(METRICS) else None


def state_folder(server: int, environ: Mapping[str, str] | None = None) -> Path | None:
    """Where a server keeps what it needs after a sudden death; None keeps nothing."""
    place = Environment(os.environ if environ is None else environ).text(STATE)
    return Path(place) / f"server-{server}" if place else None
