"""What the launcher hands to the processes of a parameter-server job: a token and a folder."""

import secrets
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleetx.launch.addresses import is_loopback, split_endpoint
from fleetx.launch.cluster import Job
from fleetx.launch.errors import LaunchError

TOKEN, STATE = "FLEETX_PS_TOKEN", "FLEETX_PS_STATE"


@dataclass(frozen=True)
class ServerSecrets:
    """Empty for a job without servers."""

    token: str = ""
    folder: Path | None = None
    """Where servers keep their logs for the case that they are killed."""

    def variables(self, attempt: int) -> dict[str, str]:
        """A whole job that starts again starts from nothing, hence a folder for each attempt."""
        given = {TOKEN: self.token} if self.token else {}
        if self.folder is not None:
            given[STATE] = str(self.folder / f"attempt-{attempt}")
        return given

    def remove(self) -> None:
        """The job is over."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def check_token(job: Job, environ: Mapping[str, str]) -> None:
    """Refuses servers that would refuse themselves, one by one, after everything has started."""
    if job.world is None or job.max_nodes == 1 or environ.get(TOKEN, ""):
        return
    hosts = [split_endpoint(server, "--servers")[0] for server in job.world.servers]
    far = [host for host in hosts if not is_loopback(host)]
    if far:
        raise LaunchError(
            f"server {far[0]} can be reached by others, and no token protects it; set {TOKEN} to "
            "the same secret on every machine, such as the output of "
            "python -c 'import secrets; print(secrets.token_hex())'"
        )


def server_secrets(job: Job, environ: Mapping[str, str], log_dir: str) -> ServerSecrets:
    """A fresh token for a job of this machine; launchers of several need one that was set."""
    if not job.is_parameter_server:
        return ServerSecrets()
    token = environ.get(TOKEN, "") or ("" if job.max_nodes > 1 else secrets.token_hex(32))
    return ServerSecrets(token, _state_folder(environ.get(STATE) or log_dir))


def _state_folder(root: str) -> Path:
    """A new one: a job of the launcher begins anew, whatever an earlier one has left there."""
    place = Path(root).resolve()
    try:
        place.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="servers-", dir=place))
    except OSError as error:
        raise LaunchError(
            f"servers cannot keep their logs in {place} ({error}); set {STATE} to a folder that "
            "can be written to, or leave it out for --log_dir"
        ) from None
