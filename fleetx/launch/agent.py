"""The agent of one machine: torch's elastic loop over the processes of a job."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    SimpleElasticAgent,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.multiprocessing import SubprocessContext
from torch.distributed.elastic.multiprocessing.subprocess_handler import get_subprocess_handler
from typing_extensions import override

from fleetx.launch.cluster import Job, Process, World
from fleetx.launch.console import terminal, warn
from fleetx.launch.departure import ASKS_FOR_RESTART, Departure
from fleetx.launch.environment import torch_variables, variables
from fleetx.launch.errors import Interrupted, ask_before_stopping, ignore_signals, pass_on
from fleetx.launch.failure import Failure, Record, Watch, meaning
from fleetx.launch.job_board import JobBoard
from fleetx.launch.logs import Echo, WorkerLogs, last_lines
from fleetx.launch.progress_bars import TERMINAL
from fleetx.launch.rendezvous import Rendezvous
from fleetx.launch.restart_policy import RestartPolicy
from fleetx.launch.saving import Saving
from fleetx.launch.seen import Verdict, named
from fleetx.launch.server_secrets import server_secrets
from fleetx.launch.stuck import CODE, Limits, StuckWatch
from fleetx.launch.telling import Telling

GRACE = 4.0
"""Seconds between SIGTERM (or SIGINT) and SIGKILL, short enough to be gone in ten."""
INTERVAL = 0.1
RUNNER = str(Path(__file__).with_name("runner.py"))


class Processes(SubprocessContext):
    """The processes of one attempt."""

    def codes(self) -> dict[int, int | None]:
        """Exit codes so far."""
        return {index: each.proc.poll() for index, each in self.subprocess_handlers.items()}

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Stops what still runs, with whatever the processes have started themselves."""
        self.close(number, timeout=GRACE)  # type: ignore[arg-type]
        for pid in self.pids().values():
            try:
                os.killpg(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                continue

    def start_again(self, index: int) -> None:
        """Starts one process anew, as it was started before; its log is kept beside the new one."""
        log = self.stdouts[index]
        os.replace(log, f"{log}.{int(time.time())}")
        self.subprocess_handlers[index] = get_subprocess_handler(
            entrypoint=sys.executable,
            args=self.args[index],
            env=self.envs[index],
            stdout=log,
            stderr=self.stderrs[index],
            local_rank_id=index,
        )


class FleetAgent(SimpleElasticAgent):
    """Starts, watches and stops the workers (and servers) of this machine."""

    def __init__(
        self,
        job: Job,
        command: Sequence[str],
        *,
        rendezvous: Rendezvous,
        board: JobBoard,
        logs: WorkerLogs,
        max_restart: int,
        limits: Limits,
        saving: Saving,
        telling: Telling,
        keeper: bool,
    ) -> None:
        spec = WorkerSpec(
            role="trainer",
            local_world_size=job.size,
            entrypoint=sys.executable,
            args=("-u", RUNNER, *command),
            rdzv_handler=rendezvous,
            max_restarts=max_restart,
            monitor_interval=INTERVAL,
        )
        super().__init__(spec, exit_barrier_timeout=30)
        self._job, self._machines, self._board, self._logs = job, rendezvous, board, logs
        self._processes: Processes | None = None
        self._watch: Watch | None = None
        self._limits = limits
        self._stuck: StuckWatch | None = None
        self._echo: Echo | None = None
        self._told_finished = self._told_leaving = False
        self._saving, self._telling, self._keeper = saving, telling, keeper
        self._departure = Departure((), 0.0)
        self.left: Failure | None = None
        """How the workers of this machine took their leave, where those of others go on."""
        self._restarts: RestartPolicy | None = None
        self._secrets = server_secrets(job, os.environ, logs.root_log_dir)

    @override
    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        world = self._world
        attempt = self._machines.attempt
        self._logs.begin(world.local, attempt)
        files = [self._logs.error_file(process) for process in world.local]
        self._watch = Watch(world.local, files)
        self._told_finished = self._told_leaving = False
        told = [self._logs.activity_file(process) for process in world.local]
        self._stuck = StuckWatch(world, told, self._board, attempt, self._limits)
        self._telling.begin(world, told, attempt, self._job.host)
        pairs = zip(world.local, told, strict=True)
        mine = [file for process, file in pairs if process.role == "TRAINER"]
        self._departure = Departure(mine, self._saving.grace)
        self._restarts = (
            RestartPolicy(world, lambda: self._board.lose(attempt))
            if self._job.is_parameter_server
            else None
        )
        spec = worker_group.spec
        self._processes = Processes(
            name=spec.role,
            entrypoint=sys.executable,
            args=dict.fromkeys(range(len(world.local)), spec.args),
            envs={index: self._variables(each) for index, each in enumerate(world.local)},
            logs_specs=self._logs,
        )
        self._processes.start()
        pass_on(self._pass_on)
        ask_before_stopping(self._leave)
        self._start_echo(world)
        return self._processes.pids()

    def _pass_on(self, number: signal.Signals) -> None:
        assert self._processes is not None
        for index, code in self._processes.codes().items():
            if code is None and self._world.local[index].role == "TRAINER":
                self._processes.subprocess_handlers[index].proc.send_signal(number)

    def _leave(self) -> bool:
        """On SIGTERM: lets the workers leave by themselves, if they can."""
        if not self._departure.begin():
            return False
        self._pass_on(signal.SIGTERM)
        return True

    @property
    def _world(self) -> World:
        assert self._machines.world is not None, "workers start only after the machines have met"
        return self._machines.world

    def _variables(self, process: Process) -> dict[str, str]:
        world, attempt = self._world, self._machines.attempt
        restarts = self._worker_group.spec.max_restarts
        file = self._logs.activity_file(process)
        judged = process.role == "TRAINER"
        watched = self._limits.variables(file) if judged else self._telling.variables(file)
        watched |= self._saving.variables()
        if process == _shown(world) and (path := terminal()) is not None:
            watched[TERMINAL] = path
        return (
            self._secrets.variables(attempt)
            | watched
            | variables(self._job, world, process, attempt=attempt, environ=os.environ)
            | torch_variables(
                world, process, master=self._machines.master, attempt=attempt, restarts=restarts
            )
        )

    def _start_echo(self, world: World) -> None:
        if (process := _shown(world)) is not None:
            self._echo = Echo(self._logs.log(process))

    @override
    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self._processes is not None
        assert self._watch is not None
        self._check_departure()
        found = self._watch.look(self._codes(self._processes))
        if found is not None:
            self._telling.look(self._processes.codes(), now=True)
            self._settle(self._failure(*found))
            return RunResult(state=WorkerState.FAILED)
        assert self._stuck is not None
        if self._all_finished():
            self._processes.end()
            self._stuck.look_back()
            self._telling.look(self._processes.codes(), now=True)
            ranks = [worker.global_rank for worker in worker_group.workers]
            return RunResult(state=WorkerState.SUCCEEDED, return_values=dict.fromkeys(ranks))
        self._check_others()
        verdict = self._stuck.look()
        self._telling.look(self._processes.codes(), self._stuck.found, now=verdict is not None)
        if verdict is not None:
            self._settle(self._standing_still(verdict))
            return RunResult(state=WorkerState.FAILED)
        return RunResult(state=WorkerState.HEALTHY)

    def _check_departure(self) -> None:
        if self._departure.begun and not self._told_leaving:
            self._told_leaving = True
            self._board.leave(self._machines.attempt)
        self._departure.check()

    def _failure(self, process: Process, record: Record) -> Failure:
        """A process that has failed; or those because of which it did, if they ended well."""
        assert self._stuck is not None
        if record.exit_code == ASKS_FOR_RESTART:
            return _taken_leave(process, self._job, record)
        behind = self._stuck.blame(process)
        lines = last_lines(self._logs.log(process))
        message = f"{record.message}{meaning(lines)}"
        return Failure(
            title=process.title if behind is None else named(behind.culprits),
            node=self._job.host,
            exit_code=record.exit_code,
            time=record.time,
            message=message if behind is None else f"{behind.sentence}. {message}",
            log=str(self._logs.log(process)),
            lines=lines,
            others="" if behind is not None else self._stuck.meanwhile(process),
        )

    def _standing_still(self, verdict: Verdict) -> Failure:
        """Ranks for which the others have waited too long."""
        here = [each for each in self._world.local if each.rank == verdict.culprits[0]]
        logs = [self._logs.log(each) for each in here if each.role == "TRAINER"]
        return Failure(
            title=named(verdict.culprits),
            node=self._job.host,
            exit_code=CODE,
            time=time.time(),
            message=f"{verdict.sentence} (--stuck_after {self._limits.end:g})",
            log=str(logs[0]) if logs else "",
            lines=last_lines(logs[0]) if logs else (),
        )

    def _codes(self, processes: Processes) -> dict[int, int | None]:
        """Exit codes, less the deaths that a job with servers survives."""
        codes = processes.codes()
        if self._restarts is None:
            return codes
        for index in self._restarts.to_restart(codes):
            processes.start_again(index)
            codes[index] = None
        return self._restarts.survived(codes)

    def _settle(self, failure: Failure) -> None:
        """Decides between another attempt and the end of the job."""
        if failure.exit_code == ASKS_FOR_RESTART and self._part(failure):
            return
        allowed = self._worker_group.spec.max_restarts
        number = self._board.count_failed(self._machines.attempt)
        # The agent counts its own machine's failures; the limit is the job's.
        self._remaining_restarts = int(number <= allowed)
        if number <= allowed:
            warn(f"{failure.headline()}; restart {number} of {allowed}")
        else:
            self._board.post(failure)

    def _part(self, failure: Failure) -> bool:
        """After the workers took their leave because a machine goes: whether that settles it."""
        attempt = self._machines.attempt
        if not self._board.is_left(attempt):
            return False  # a worker was told alone: that is a failure like others
        others = self._may_part
        goes_on = others and not self._departure.begun
        self._remaining_restarts = int(goes_on)
        if goes_on:
            warn(f"{failure.headline()}; a machine leaves, and the others meet again")
        elif others and not self._keeper:
            self.left = failure
            self._machines.part()
        else:
            self._board.post(failure)
        return True

    def _all_finished(self) -> bool:
        """True when the last worker of the last machine has ended well."""
        assert self._watch is not None
        world, attempt = self._world, self._machines.attempt
        if not self._told_finished and self._watch.finished("TRAINER") == world.local_workers:
            self._told_finished = True
            self._board.finish(attempt, world.local_workers)
        return self._board.finished(attempt) == len(world.workers)

    def _check_others(self) -> None:
        world, attempt = self._world, self._machines.attempt
        silent = self._board.beat(attempt, world.node_rank, world.nnodes)
        if silent is None:
            return
        if self._may_part:
            warn(f"the launcher of machine {silent} gave no sign of life; the others meet again")
            self._board.meet_again(attempt)
            return
        self._board.post(
            Failure(
                title=f"machine {silent}",
                node=self._job.host,
                exit_code=1,
                time=time.time(),
                message="its launcher gave no sign of life",
            )
        )

    @override
    def _stop_workers(self, worker_group: WorkerGroup) -> None:
        self._stop(signal.SIGTERM)

    def _stop(self, number: signal.Signals) -> None:
        self._departure.call_off()
        if self._processes is not None:
            self._processes.end(number)
        if self._echo is not None:
            self._echo.finish()
            self._echo = None

    def goes_alone(self, stop: Interrupted) -> bool:
        """Whether a machine that is told to stop before its workers can save leaves the others.

        Only where somebody has said that the script saves itself; else the whole job ends.
        """
        alone = self._saving.seconds is not None and self._may_part and not self._keeper
        if stop.number is not signal.SIGTERM or not alone:
            return False
        if self._machines.attempt >= 0:
            self._board.meet_again(self._machines.attempt)
        self._machines.part()
        return True

    @property
    def _may_part(self) -> bool:
        return self._job.min_nodes != self._job.max_nodes

    def hear(self) -> None:
        """Prints what another machine has said of a job that stood still, before it ended it."""
        if self._stuck is not None:
            self._stuck.hear()

    def tidy(self) -> None:
        """Removes what servers kept in case of a sudden death."""
        self._secrets.remove()

    @override
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        ignore_signals()
        # Ctrl-C is Ctrl-C for the script too: torch calls this while the exception is on its way.
        stop = sys.exception()
        by_hand = isinstance(stop, Interrupted) and stop.number is signal.SIGINT
        self._stop(signal.SIGINT if by_hand else signal.SIGTERM)


def _shown(world: World) -> Process | None:
    """The process of this machine whose output the console shows."""
    workers = (each for each in world.local if each.role == "TRAINER" and each.rank == 0)
    return next(workers, None)


def _taken_leave(process: Process, job: Job, record: Record) -> Failure:
    return Failure(
        title=process.title,
        node=job.host,
        exit_code=record.exit_code,
        time=record.time,
        message=record.message,
        verb="left",
    )
