"""Every public call answers an argument of a plainly wrong kind in a sentence that names it."""

import inspect
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import fleetx
from fleetx import metrics as typed_metrics
from fleetx import roles
from fleetx import static as typed_static
from fleetx.io import load_checkpoint, save_checkpoint
from fleetx.testing import world

# What mypy would refuse is what this file is about.
fleet: Any = fleetx
static: Any = typed_static
metrics: Any = typed_metrics


class Odd:
    """Nothing that any call takes."""


WRONG: dict[str, Any] = {"None": None, "number": 0.5, "text": "text", "list": [], "odd": Odd()}


class Job:
    """A small job in which everything is right but for one argument."""

    def __init__(self) -> None:
        fleet.init(is_collective=True)
        self.plain = nn.Linear(4, 3)
        self.sgd = torch.optim.SGD(self.plain.parameters(), lr=0.1)
        self.strategy = fleet.DistributedStrategy()
        self.batch = torch.zeros(2, 4), torch.tensor([0, 2])

    def trained(self) -> tuple[Any, Any]:
        model = fleet.distributed_model(self.plain, criterion=cross_entropy)
        return model, fleet.distributed_optimizer(self.sgd)

    def loader(self, **options: Any) -> Any:
        return fleet.distributed_loader(DataLoader(TensorDataset(*self.batch)), **options)

    def stepped(self, verb: str, *arguments: Any) -> Any:
        model, optimizer = self.trained()
        cross_entropy(model(self.batch[0]), self.batch[1]).backward()
        return getattr(optimizer, verb)(*arguments)

    def plan(self, **changed: Any) -> Any:
        return fleet.plan(self.plain, sample=self.batch[0], **changed)

    def check(self, **changed: Any) -> Any:
        given = {"model": self.plain, "optimizer": self.sgd, "strategy": self.strategy}
        return fleet.check(**{**given, "batches": [self.batch], **changed})

    def profile(self, **changed: Any) -> Any:
        given = {"model": self.plain, "optimizer": self.sgd, "strategy": self.strategy}
        given |= {"steps": 1, "warmup": 0, "tries": False, "batches": [self.batch]}
        return fleet.profile(**{**given, **changed})

    def saved(self, **changed: Any) -> Any:
        model, optimizer = self.trained()
        given = {"folder": "saved", "model": model, "optimizer": optimizer, "step": 1}
        return save_checkpoint(**{**given, **changed})

    def loaded(self, **changed: Any) -> Any:
        model, optimizer = self.trained()
        given = {"folder": "saved", "model": model, "optimizer": optimizer}
        return load_checkpoint(**{**given, **changed})

    def managed(self, **changed: Any) -> Any:
        roles.stop()  # nothing of the job may be laid out yet
        fleet.init(is_collective=True)
        return fleet.CheckpointManager(**{"folder": "kept", **changed})

    def kept(self, **changed: Any) -> Any:
        manager = self.managed()
        model, optimizer = self.trained()
        manager.load(**{"model": model, "optimizer": optimizer, **changed})
        return manager

    def programmed(self, use: Callable[[Tensor], Any]) -> Any:
        with static.program_guard(static.Program(), static.Program()):
            return use(static.nn.fc(static.data("x", (None, 4)), 1).mean())

    def executed(self, **given: Any) -> Any:
        def run(loss: Tensor) -> Any:
            exe = static.Executor()
            exe.run(static.default_startup_program())
            feed = {"x": torch.zeros(2, 4)}
            return exe.run(**{"feed": feed, "fetch_list": [loss], **given})

        return self.programmed(run)


TensorPair = tuple[Tensor, Tensor]
SCORES: TensorPair = torch.rand(2), torch.tensor([0, 1])

# Call(argument) -> what is done with a wrong value, and the names of values that are right there:
# of the right kind, that is. A path that does not exist, or a variable that no program has, is
# answered elsewhere. Flags are not here: of any object Python knows whether it is true.
CALLS: dict[str, tuple[Callable[[Job, Any], Any], str]] = {
    "init(role_maker)": (lambda job, w: fleet.init(w, is_collective=True), "None"),
    "init(is_collective)": (lambda job, w: fleet.init(is_collective=w), ""),
    "init(strategy)": (lambda job, w: fleet.init(is_collective=True, strategy=w), "None"),
    "init(trackers)": (lambda job, w: fleet.init(is_collective=True, trackers=w), "list"),
    "init(log_every)": (lambda job, w: fleet.init(is_collective=True, log_every=w), ""),
    "init(on_nan)": (lambda job, w: fleet.init(is_collective=True, on_nan=w), "None"),
    "log(values)": (lambda job, w: fleet.log(w), ""),
    "log(step)": (lambda job, w: fleet.log({}, step=w), "None"),
    "seed(number)": (lambda job, w: fleet.seed(w), ""),
    "seed(per_worker)": (lambda job, w: fleet.seed(1, per_worker=w), ""),
    "first_worker_first(per_machine)": (
        lambda job, w: fleet.first_worker_first(per_machine=w).__enter__(),
        "",
    ),
    "launch(function)": (lambda job, w: fleet.launch(w), ""),
    "launch(workers)": (lambda job, w: fleet.launch(print, workers=w), ""),
    "launch(gpus)": (lambda job, w: fleet.launch(print, gpus=w), "None text"),
    "launch(on)": (lambda job, w: fleet.launch(print, on=w), "None text"),
    "distributed_model(model)": (lambda job, w: fleet.distributed_model(w), ""),
    "distributed_model(criterion)": (
        lambda job, w: fleet.distributed_model(job.plain, criterion=w),
        "None",
    ),
    "distributed_optimizer(optimizer)": (lambda job, w: fleet.distributed_optimizer(w), ""),
    "distributed_optimizer(strategy)": (
        lambda job, w: fleet.distributed_optimizer(job.sgd, w),
        "None",
    ),
    "distributed_optimizer(grad_clip)": (
        lambda job, w: fleet.distributed_optimizer(job.sgd, grad_clip=w),
        "None",
    ),
    "plan(model)": (lambda job, w: fleet.plan(w, sample=job.batch[0]), ""),
    "plan(optimizer)": (lambda job, w: job.plan(optimizer=w), "None"),
    "plan(criterion)": (lambda job, w: job.plan(criterion=w), "None"),
    "plan(strategy)": (lambda job, w: job.plan(strategy=w), "None"),
    "plan(cluster)": (lambda job, w: job.plan(cluster=w), "None text"),
    "plan(count)": (lambda job, w: job.plan(count=w), ""),
    "DistributedOptimizer(optimizer)": (lambda job, w: fleet.DistributedOptimizer(w), ""),
    "minimize(loss)": (lambda job, w: job.stepped("minimize", w), ""),
    "backward(loss)": (lambda job, w: job.stepped("backward", w), ""),
    "step(closure)": (lambda job, w: job.stepped("step", w), "None"),
    "load_state_dict(state_dict)": (lambda job, w: job.stepped("load_state_dict", w), ""),
    "train_batch(data)": (lambda job, w: job.trained()[0].train_batch(w), ""),
    "train_batch(optimizer)": (
        lambda job, w: job.trained()[0].train_batch(job.batch, w),
        "None",
    ),
    "train_batch(lr_scheduler)": (
        lambda job, w: job.trained()[0].train_batch(job.batch, lr_scheduler=w),
        "None",
    ),
    "eval_batch(data)": (lambda job, w: job.trained()[0].eval_batch(w), ""),
    "full_state_dict(model)": (lambda job, w: fleet.full_state_dict(w), ""),
    "load_full_state_dict(model)": (
        lambda job, w: fleet.load_full_state_dict(w, job.plain.state_dict()),
        "",
    ),
    "load_full_state_dict(state)": (
        lambda job, w: fleet.load_full_state_dict(job.trained()[0], w),
        "",
    ),
    "load_weights(model)": (lambda job, w: fleet.load_weights(w, "folder"), ""),
    "load_weights(folder)": (lambda job, w: fleet.load_weights(job.plain, w), "text"),
    "load_weights(strict)": (
        lambda job, w: fleet.load_weights(job.plain, "folder", strict=w),
        "",
    ),
    "save_weights(model)": (lambda job, w: fleet.save_weights(w, "folder"), ""),
    "save_weights(folder)": (lambda job, w: fleet.save_weights(job.plain, w), "text"),
    "save_weights(max_shard_size)": (
        lambda job, w: fleet.save_weights(job.plain, "folder", max_shard_size=w),
        "",
    ),
    "distributed_loader(loader)": (lambda job, w: fleet.distributed_loader(w), ""),
    "distributed_loader(uneven)": (lambda job, w: job.loader(uneven=w), ""),
    "distributed_loader(device)": (lambda job, w: job.loader(device=w), "None"),
    "distributed_loader(group)": (lambda job, w: job.loader(group=w), "None"),
    "distributed_loader(then)": (lambda job, w: job.loader(then=w), "None"),
    "distributed_loader(ahead)": (lambda job, w: job.loader(ahead=w), "None"),
    "DistributedLoader(loader)": (lambda job, w: fleet.DistributedLoader(w, w, w), ""),
    "all_reduce(input)": (lambda job, w: fleet.all_reduce(w), "number list"),
    "all_reduce(mode)": (lambda job, w: fleet.all_reduce(1, w), ""),
    "mesh(axes)": (lambda job, w: fleet.mesh(w), ""),
    "split_files(files)": (lambda job, w: fleet.split_files(w), "list"),
    "check(model)": (lambda job, w: job.check(model=w), ""),
    "check(optimizer)": (lambda job, w: job.check(optimizer=w), ""),
    "check(strategy)": (lambda job, w: job.check(strategy=w), ""),
    "check(batches)": (lambda job, w: job.check(batches=w), ""),
    "check(criterion)": (lambda job, w: job.check(criterion=w), ""),
    "check(seed)": (lambda job, w: job.check(seed=w), ""),
    "profile(model)": (lambda job, w: job.profile(model=w), ""),
    "profile(optimizer)": (lambda job, w: job.profile(optimizer=w), ""),
    "profile(strategy)": (lambda job, w: job.profile(strategy=w), ""),
    "profile(batches)": (lambda job, w: job.profile(batches=w), ""),
    "profile(criterion)": (lambda job, w: job.profile(criterion=w), ""),
    "profile(steps)": (lambda job, w: job.profile(steps=w), ""),
    "profile(warmup)": (lambda job, w: job.profile(warmup=w), "None"),
    "profile(tries)": (lambda job, w: job.profile(tries=w), ""),
    "profile(out)": (lambda job, w: job.profile(out=w), "None text"),
    "train_from_dataset(dataset)": (
        lambda job, w: fleet.train_from_dataset(w, lambda batch: None),
        "list",
    ),
    "train_from_dataset(step)": (lambda job, w: fleet.train_from_dataset([1], w), ""),
    "train_from_dataset(ahead)": (
        lambda job, w: fleet.train_from_dataset([1, 2], lambda batch: None, ahead=w),
        "None",
    ),
    "train_from_dataset(report)": (
        lambda job, w: fleet.train_from_dataset([1], lambda batch: None, report=w),
        "None",
    ),
    "train_from_dataset(print_period)": (
        lambda job, w: fleet.train_from_dataset([1], lambda batch: None, print_period=w),
        "",
    ),
    "minimize(cost)": (lambda job, w: fleet.minimize(w), ""),
    "save_persistables(dirname)": (
        lambda job, w: fleet.save_persistables(static.Executor(), w),
        "text",
    ),
    "save_persistables(executor)": (lambda job, w: fleet.save_persistables(w, "model"), ""),
    "load_persistables(dirname)": (
        lambda job, w: fleet.load_persistables(static.Executor(), w),
        "text",
    ),
    "save_inference_model(dirname)": (
        lambda job, w: fleet.save_inference_model(static.Executor(), w, ["x"], []),
        "text",
    ),
    "load_inference_model(dirname)": (
        lambda job, w: fleet.load_inference_model(w, static.Executor()),
        "text",
    ),
    "load_vars(dirname)": (lambda job, w: fleet.load_vars(static.Executor(), w), "text"),
    "save_checkpoint(folder)": (lambda job, w: job.saved(folder=w), "text"),
    "save_checkpoint(model)": (lambda job, w: job.saved(model=w), ""),
    "save_checkpoint(optimizer)": (lambda job, w: job.saved(optimizer=w), ""),
    "save_checkpoint(step)": (lambda job, w: job.saved(step=w), ""),
    "save_checkpoint(parts)": (lambda job, w: job.saved(parts=w), "None"),
    "save_checkpoint(numbers)": (lambda job, w: job.saved(numbers=w), "None"),
    "save_checkpoint(keep)": (lambda job, w: job.saved(keep=w), ""),
    "CheckpointManager(folder)": (lambda job, w: job.managed(folder=w), "text"),
    "CheckpointManager(seconds)": (lambda job, w: job.managed(seconds=w), "None number"),
    "CheckpointManager(steps)": (lambda job, w: job.managed(steps=w), "None"),
    "CheckpointManager(keep)": (lambda job, w: job.managed(keep=w), ""),
    "CheckpointManager(resume)": (lambda job, w: job.managed(resume=w), ""),
    "CheckpointManager(shares)": (lambda job, w: job.managed(shares=w), "None"),
    "CheckpointManager.load(model)": (lambda job, w: job.kept(model=w), ""),
    "CheckpointManager.load(optimizer)": (lambda job, w: job.kept(optimizer=w), ""),
    "CheckpointManager.load(parts)": (lambda job, w: job.kept(parts=w), "None"),
    "CheckpointManager.step(numbers)": (lambda job, w: job.kept().step(w), "None"),
    "CheckpointManager.save(numbers)": (lambda job, w: job.kept().save(w), "None"),
    "load_checkpoint(folder)": (lambda job, w: job.loaded(folder=w), "text"),
    "load_checkpoint(model)": (lambda job, w: job.loaded(model=w), ""),
    "load_checkpoint(optimizer)": (lambda job, w: job.loaded(optimizer=w), ""),
    "ClipGradByGlobalNorm(clip_norm)": (lambda job, w: fleet.ClipGradByGlobalNorm(w), "number"),
    "ClipGradByNorm(clip_norm)": (lambda job, w: fleet.ClipGradByNorm(w), "number"),
    "ClipGradByValue(max)": (lambda job, w: fleet.ClipGradByValue(w), "number"),
    "ClipGradByValue(min)": (lambda job, w: fleet.ClipGradByValue(1.0, w), "None number"),
    "BuildStrategy(chosen)": (lambda job, w: fleet.BuildStrategy(w), "None"),
    "ExecutionStrategy(chosen)": (lambda job, w: fleet.ExecutionStrategy(w), "None"),
    "Slot(name)": (lambda job, w: fleet.Slot(w), "text"),
    "PaddleCloudRoleMaker(environ)": (
        lambda job, w: fleet.PaddleCloudRoleMaker(environ=w),
        "None",
    ),
    "UserDefinedRoleMaker(current_id)": (
        lambda job, w: fleet.UserDefinedRoleMaker(w, fleet.Role.WORKER, 1, ["a:1"]),
        "",
    ),
    "explain(model)": (lambda job, w: job.strategy.explain(w), "None"),
    "explain(workers)": (lambda job, w: job.strategy.explain(workers=w), ""),
    "save_to_prototxt(output)": (lambda job, w: job.strategy.save_to_prototxt(w), "text"),
    "load_from_prototxt(pb_file)": (lambda job, w: job.strategy.load_from_prototxt(w), "text"),
    "parse_train_configs(argv)": (lambda job, w: fleet.parse_train_configs(w), "None list"),
    "Accuracy(topk)": (lambda job, w: metrics.Accuracy(w), ""),
    "Accuracy.update(scores)": (lambda job, w: metrics.Accuracy().update(w, SCORES[1]), "list"),
    "Accuracy.update(labels)": (lambda job, w: metrics.Accuracy().update(SCORES[0], w), "list"),
    "AUC(limit)": (lambda job, w: metrics.AUC(w), ""),
    "AUC.update(predictions)": (lambda job, w: metrics.AUC().update(w, SCORES[1]), ""),
    "AUC.update(labels)": (lambda job, w: metrics.AUC().update(SCORES[0], w), ""),
    "MAE.update(predictions)": (lambda job, w: metrics.MAE().update(w, SCORES[0]), ""),
    "MSE.update(targets)": (lambda job, w: metrics.MSE().update(SCORES[0], w), ""),
    "gather_for_metrics(values)": (lambda job, w: fleet.gather_for_metrics(w), "list"),
    "acc(correct)": (lambda job, w: metrics.acc(w, 2), "number"),
    "auc(stat_pos)": (lambda job, w: metrics.auc(w, [1, 2]), ""),
    "mae(abserr)": (lambda job, w: metrics.mae(w, 2), "number"),
    "Executor(place)": (lambda job, w: static.Executor(w), "None"),
    "Executor.run(program)": (lambda job, w: job.executed(program=w), "None"),
    "Executor.run(feed)": (lambda job, w: job.executed(feed=w), ""),
    "Executor.run(fetch_list)": (lambda job, w: job.executed(fetch_list=w), "None list text"),
    "static.data(name)": (lambda job, w: static.data(w, (2, 2)), "text"),
    "static.data(shape)": (lambda job, w: static.data("x", w), "list"),
    "static.data(dtype)": (lambda job, w: static.data("x", (2, 2), w), ""),
    "static.program_guard(main_program)": (
        lambda job, w: static.program_guard(w).__enter__(),
        "",
    ),
    "static.append_backward(loss)": (lambda job, w: static.append_backward(w), ""),
    "static.gradients(targets)": (lambda job, w: static.gradients(w, w), ""),
    "static.minimize(optimizer)": (
        lambda job, w: job.programmed(lambda loss: static.minimize(w, loss)),
        "",
    ),
    "static.minimize(loss)": (
        lambda job, w: static.minimize(static.Optimizer(torch.optim.SGD, lr=0.1), w),
        "",
    ),
    "static.Optimizer(cls)": (lambda job, w: static.Optimizer(w), ""),
    "static.Optimizer(lr)": (lambda job, w: static.Optimizer(torch.optim.SGD, lr=w), "None number"),
    "static.CompiledProgram(program)": (lambda job, w: static.CompiledProgram(w), ""),
    "static.save(program)": (lambda job, w: static.save(w, "model"), ""),
    "static.load(program)": (lambda job, w: static.load(w, "model"), ""),
    "static.nn.fc(x)": (lambda job, w: static.nn.fc(w, 3), ""),
}


def answers(call: str, folder: str) -> dict[str, str]:
    """Value -> what is wrong with the answer to it."""
    os.chdir(folder)
    use, right = CALLS[call]
    faults: dict[str, str] = {}
    for name in WRONG.keys() - right.split():
        try:
            use(Job(), WRONG[name])
        except (TypeError, ValueError, RuntimeError) as error:
            if not named(call, str(error)):
                faults[name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            faults[name] = f"{type(error).__name__}: {error}"
        else:
            faults[name] = "was taken"
    return faults


def named(call: str, words: str) -> bool:
    function, argument = re.fullmatch(r"(?:\w+\.)*(\w+)\((\w+)\)", call).groups()  # type: ignore[union-attr]
    return function in words or argument in words


@pytest.mark.parametrize("call", CALLS)
def test_a_wrong_argument_is_named(call: str, tmp_path: Path) -> None:
    faults = world(1).run(answers, call, str(tmp_path))[0]
    assert not faults, "\n".join(f"{value}: {words}" for value, words in faults.items())


EXEMPT = {
    "DistributedModel": "a type for annotations, of which nobody makes an object",
    "MultiSlotDataGenerator": "takes nothing; what its methods return is judged line by line",
    "PlanError": "an exception",
    "NotInitializedError": "an exception",
    "Role": "an enum, which names the value that it does not have",
    "RoleMakerBase": "abstract",
    "UserDefinedCollectiveRoleMaker": "checks like UserDefinedRoleMaker; tests/roles",
    "init_server": "for servers alone; tests/engine/test_servers.py",
    "server_endpoints": "takes a flag, and of any object Python knows whether it is true",
    "shrink": "for jobs with servers alone; tests/engine/test_servers.py",
    "worker_endpoints": "takes a flag, and of any object Python knows whether it is true",
}


def test_every_public_call_is_in_the_table() -> None:
    tried = {call.partition("(")[0] for call in CALLS}
    for name in fleet.__all__:
        found = None if name in EXEMPT else getattr(fleet, name)
        if callable(found) and inspect.signature(found).parameters:
            assert name in tried, f"fleet.{name}() takes arguments, and none was tried"
