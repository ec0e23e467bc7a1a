"""Which files of a list are this worker's."""

from collections.abc import Sequence

from fleetx import roles


def own_files(files: Sequence[str]) -> list[str]:
    """Every n-th file; all of them where there are fewer files than workers, or one worker."""
    if not roles.started() or len(files) < roles.worker_num():
        return list(files)
    return list(files)[roles.worker_index() :: roles.worker_num()]
