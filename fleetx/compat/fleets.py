"""The ``fleet`` objects of all generations: thin over fleetx."""

import importlib
from dataclasses import replace
from typing import Any

import fleetx
from fleetx import roles
from fleetx.api import session
from fleetx.compat import modes
from fleetx.compat.distribution import DistributedOptimizer, distribute
from fleetx.compat.fleet_strategies import DistributedStrategy, native
from fleetx.compat.notes import note
from fleetx.compat.programs import Program, ours
from fleetx.compat.role_makers import PaddleCloudRoleMaker
from fleetx.plan.contract import Phase
from fleetx.plan.error import PlanError
from fleetx.static.run import distributed as programs
from fleetx.static.run.executions import executions
from fleetx.static.run.single_worker import without_exchange
from fleetx.static.run.training import Training, training_of

_QUERIES = [
    "is_first_worker",
    "worker_index",
    "worker_num",
    "node_num",
    "local_rank",
    "rank",
    "nranks",
    "world_size",
    "local_device_ids",
    "world_device_ids",
    "is_worker",
    "worker_endpoints",
    "server_num",
    "server_index",
    "server_endpoints",
    "is_server",
    "is_coordinator",
    "barrier_worker",
    "split_files",
    "util",
    "shrink",
    "all_reduce",
    "server_report",
]
"""The same words, and the same answers."""


class StartupProgram(Program):
    """A start-up program that scripts also call, as if it were the function that gives it."""

    def __call__(self) -> "StartupProgram":
        """Itself."""
        return self


class Fleet:
    """One job, as scripts see it."""

    _collective: bool | None = None
    """What the job is where the script does not say: collective, or with servers."""

    def __init__(self) -> None:
        self._latest: DistributedOptimizer | None = None
        self._role_maker: Any = None

    def init(
        self,
        role_maker: Any = None,
        is_collective: bool | None = None,
        strategy: Any = None,
        **idle: Any,
    ) -> "Fleet":
        """Learn who this process is, and meet the others."""
        for name in idle:
            note(f"fleet.init({name}=...)", "it has nothing to set here.")
        if isinstance(role_maker, bool):
            role_maker, is_collective = None, role_maker
        collective = bool(self._collective if is_collective is None else is_collective)
        if role_maker is not None:
            collective = collective and role_maker.identity().is_collective
        fleetx.init(role_maker, collective, _usable(native(strategy)))
        self._role_maker = role_maker or PaddleCloudRoleMaker(collective)
        return self

    def __getattr__(self, name: str) -> Any:
        if name in _QUERIES:
            return getattr(fleetx, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"fleet has no {name!r} here. `fleetx compat check` lists what a script uses and what "
            "of it is covered."
        )

    def distributed_optimizer(self, optimizer: Any, strategy: Any = None) -> DistributedOptimizer:
        """Give an optimizer to all workers."""
        _init_late(bool(self._collective))
        if strategy is not None:
            strategy = _usable(native(strategy))
        self._latest = distribute(optimizer, strategy)
        return self._latest

    def _optimizer(self, call: str) -> DistributedOptimizer:
        if self._latest is None:
            raise RuntimeError(
                f"fleet.{call}() was called without an optimizer; call "
                "fleet.distributed_optimizer(optimizer, strategy) first."
            )
        return self._latest

    def minimize(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """``minimize`` of the optimizer that was distributed last."""
        return self._optimizer("minimize").minimize(loss, *args, **kwargs)

    # ---- programs

    @property
    def main_program(self) -> Program:
        """The program that trains with all workers."""
        return ours(programs.main_program())

    @property
    def startup_program(self) -> Program:
        """The program that initialises it."""
        found = programs.startup_program()
        if type(found) is not StartupProgram:
            found.__class__ = StartupProgram
        return found  # type: ignore[return-value]

    @property
    def _origin_program(self) -> Program:
        return ours(origin_program())

    @property
    def _transpiled_program(self) -> Program:
        return self.main_program

    # ---- files

    def save_persistables(
        self,
        executor: Any = None,
        dirname: Any = None,
        main_program: Any = None,
        filename: str | None = None,
        mode: int = 0,
        **more: Any,
    ) -> None:
        """Save what training needs to go on: by the servers, or by the first worker."""
        self._save("save_persistables", executor, dirname, main_program, filename, mode, **more)

    def _save(  # noqa: PLR0917 (the order of Paddle)
        self,
        call: str,
        executor: Any,
        dirname: Any,
        program: Any,
        filename: Any,
        mode: int,
        **_: Any,
    ) -> None:
        if isinstance(executor, str) and dirname is None:
            executor, dirname = None, executor
        if not roles.identity(call).is_collective:
            fleetx.save_persistables(str(dirname), mode=int(mode))
            return
        saving = importlib.import_module("fleetx.compat.saving")
        saving.save_persistables(executor, dirname, program or self.main_program, filename)

    def load_persistables(
        self, executor: Any, dirname: Any, main_program: Any = None, filename: str | None = None
    ) -> None:
        """Load what ``save_persistables`` saved."""
        if not roles.identity("load_persistables").is_collective:
            fleetx.load_persistables(str(dirname))
            return
        saving = importlib.import_module("fleetx.compat.saving")
        saving.load_persistables(executor, dirname, main_program or self.main_program, filename)

    load_model = load_persistables

    def save_inference_model(  # noqa: PLR0917 (the order of Paddle)
        self,
        executor: Any,
        dirname: Any,
        feeded_var_names: Any = (),
        target_vars: Any = (),
        main_program: Any = None,
        export_for_deployment: bool = True,
        **idle: Any,
    ) -> Any:
        """Save what is needed to compute outputs."""
        for name in idle:
            note(f"fleet.save_inference_model({name}=...)", "the model is one archive here.")
        program = main_program or self._plain_program()
        models = importlib.import_module("fleetx.compat.models")
        _, feeds, targets = models.arranged(program, feeded_var_names, target_vars)
        return fleetx.save_inference_model(executor, dirname, feeds, targets, program)

    def _plain_program(self) -> Any:
        return programs.main_program()

    # ---- servers

    def init_worker(self, *args: Any, **kwargs: Any) -> None:
        """Meet the servers."""
        if not _alone("init_worker"):
            fleetx.init_worker(*args, **kwargs)

    def stop_worker(self) -> None:
        """Leave the servers."""
        if not _alone("stop_worker"):
            fleetx.stop_worker()

    def run_server(self) -> None:
        """Serve until all workers have stopped."""
        if not _alone("run_server"):
            fleetx.run_server()

    def init_server(self, *args: Any, **kwargs: Any) -> None:
        """Prepare the tables of this server, from a folder if one is named."""
        if _alone("init_server"):
            return
        folder = args[0] if args else kwargs.pop("dirname", kwargs.pop("model_dir", None))
        names = args[1] if len(args) > 1 else kwargs.pop("var_names", None)
        kwargs.pop("mode", None)
        if kwargs:
            raise TypeError(f"init_server() has no argument {', '.join(kwargs)}")
        fleetx.init_server(folder or None, names or None)

    def _final_strategy(self) -> Any:
        return session.current("_final_strategy").strategy

    _user_defined_strategy = property(_final_strategy)

    def _get_applied_meta_list(self) -> list[str]:
        """The strategies in force, in the words of Paddle."""
        on = session.current("_get_applied_meta_list").strategy.request().strategies
        known = {"amp": "AMPOptimizer", "dgc": "DGCOptimizer", "localsgd": "LocalSGDOptimizer"}
        return [
            known.get(name, "".join(w.title() for w in name.split("_")) + "Optimizer")
            for name in on
        ]

    def _get_applied_graph_list(self) -> list[str]:
        return []


def _alone(call: str) -> bool:
    """Whether a script for servers runs as one process, where such calls do nothing in Paddle."""
    known = roles.identity(f"fleet.{call}()")
    if known.server_endpoints or known.worker_num > 1 or known.is_collective:
        return False
    note(f"fleet.{call}()", "this is one process without servers, and trains by itself.")
    return True


def _init_late(collective: bool) -> None:
    """Begin a job of workers for a script that forgot to, as Paddle lets pass until minimize."""
    if roles.started():
        return
    if not collective:
        note(
            "fleet.init()",
            "it was not called before fleet.distributed_optimizer(); a job of "
            "workers without servers begins.",
        )
    fleetx.init(is_collective=True)


def _usable(strategy: Any) -> Any:
    """A strategy whose degrees have their switches on, as scripts of Paddle leave out."""
    if not isinstance(strategy, DistributedStrategy):
        return strategy
    degrees: Any = strategy.hybrid_configs
    for name, switch in (("pp_degree", "pipeline"), ("sharding_degree", "sharding")):
        if degrees[name] > 1 and not getattr(strategy, switch):
            setattr(strategy, switch, True)
            if switch == "sharding" and not modes.is_static():
                # Eager scripts spread the states of optimizers, and read weights where they like.
                strategy.sharding_configs = {"stage": 1}
    if strategy.sharding:
        _settle_sharding(strategy)
    return strategy


def _settle_sharding(strategy: DistributedStrategy) -> None:
    """Give a pipeline that stands among the options of sharding its own switch and options."""
    options = strategy.sharding_configs
    if options["pp_degree"] > 1 and not strategy.pipeline:
        strategy.pipeline = True
        strategy.pipeline_configs = {"accumulate_steps": options["gradient_merge_acc_step"]}
        strategy.sharding_configs = {"gradient_merge_acc_step": 1}
    others = options["sharding_degree"] * options["pp_degree"] * options["mp_degree"]
    if options["hybrid_dp"] and roles.started() and others >= roles.worker_num():
        note("sharding_configs['hybrid_dp']", "the workers hold one copy of the model.")
        strategy.sharding_configs = {"hybrid_dp": False}
    if options["sharding_degree"] == 1 and options["pp_degree"] > 1:
        note("sharding_configs['sharding_degree']", "it is 1: nothing is spread but the stages.")
        strategy.hybrid_configs = {"pp_degree": options["pp_degree"]}
        strategy.sharding = False


def origin_program() -> Any:
    """The program without exchange; one that averages parameters is left out for it, too."""
    main = programs._last("_origin_program").main
    training = training_of(main)
    kept = executions(main)
    assert training is not None
    assert training.plan is not None
    averages = [s.name for s in training.plan.strategies if s.contract.phase == Phase.CADENCE]
    if averages != ["localsgd"] or kept.alone is not None:
        return programs.origin_program()
    rest = tuple(s for s in training.plan.strategies if s.name != "localsgd")
    request = session.request()
    others = {name: o for name, o in request.strategies.items() if name != "localsgd"}
    plan = without_exchange(
        replace(request, strategies=others), replace(training.plan, strategies=rest)
    )
    kept.alone = main.clone()
    kept.alone.objective = Training(
        training.loss, training.trained, training.optimizer, plan, origin=main
    )
    return kept.alone


def refuse_eager(call: str) -> PlanError:
    """The error for a call that programs have and modules have not."""
    return PlanError(f"fleet.{call} belongs to programs; call paddle.enable_static() first.")
