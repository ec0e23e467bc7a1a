"""``….fleet.utils.fleet_util``: what scripts that train by days and passes do around training."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fleetx import metrics, roles
from fleetx.compat.dtypes import dtype_of
from fleetx.compat.models import save_inference_model
from fleetx.compat.notes import note
from fleetx.compat.paddle.fluid.incubate.fleet.parameter_server.pslib.pslib_fleet import fleet
from fleetx.compat.saving import save_vars
from fleetx.compat.scopes import global_scope, scope_guard

SPAN = 0.01
"""Buckets of predictions that lie no further apart are counted together, at most."""
PRECISE = 0.05
"""A group of buckets counts as soon as chance would change its rate by less than this share."""

MODEL_DONE = "donefile.txt"


class FleetUtil:
    """Prints, metrics and saves over all workers.

    Args:
        mode: "pslib" or "transpiler": the fleet that scripts train with. Both are one here.
    """

    def __init__(self, mode: str = "pslib") -> None:
        if mode not in {"pslib", "transpiler"}:
            raise ValueError(f"FleetUtil(mode={mode!r}) is neither 'pslib' nor 'transpiler'.")

    # What the first worker says

    def rank0_print(self, s: Any) -> None:
        """Print on the first worker."""
        if _index() == 0:
            sys.stdout.write(f"{s}\n")
            sys.stdout.flush()

    rank0_info = rank0_error = rank0_print

    # Numbers

    def set_zero(
        self, var_name: str, scope: Any = None, place: Any = None, param_type: str = "int64"
    ) -> None:
        """Let a variable, such as a bucket of an AUC, begin anew."""
        found = (scope or global_scope()).find_var(var_name)
        if found is None:
            raise ValueError(f"set_zero({var_name!r}): the scope has no such variable.")
        held = found.get_tensor()
        zeros = torch.zeros(list(held.shape()), dtype=dtype_of(param_type))
        held.set(zeros.numpy(), place)

    def get_global_auc(
        self,
        scope: Any = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
    ) -> float | None:
        """The area under the curve of all workers; None if the scope has no such buckets."""
        positive, negative = (_held(scope, name) for name in (stat_pos, stat_neg))
        if positive is None or negative is None:
            self.rank0_print("not found auc bucket")
            return None
        return float(metrics.auc(positive.ravel(), negative.ravel()))

    def print_global_auc(
        self,
        scope: Any = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Print it."""
        auc = self.get_global_auc(scope, stat_pos, stat_neg)
        self.rank0_print(f"{print_prefix} global auc = {auc}")

    def get_global_metrics(  # noqa: PLR0917 (the order of Paddle)
        self,
        scope: Any = None,
        stat_pos_name: str = "_generated_var_2",
        stat_neg_name: str = "_generated_var_3",
        sqrerr_name: str = "sqrerr",
        abserr_name: str = "abserr",
        prob_name: str = "prob",
        q_name: str = "q",
        pos_ins_num_name: str = "pos",
        total_ins_num_name: str = "total",
    ) -> list[Any]:
        """Metrics of all workers, in this order.

        AUC, error by buckets, MAE, RMSE, rate, predicted rate, their ratio, mean q, samples.
        """
        names = (sqrerr_name, abserr_name, prob_name, q_name, pos_ins_num_name, total_ins_num_name)
        sums = {}
        for name in (stat_pos_name, stat_neg_name, *names):
            found = _held(scope, name)
            if found is None:
                self.rank0_print(f"not found {name}")
                return [None] * 9
            sums[name] = _everywhere(found.astype("float64"))
        positive, negative = sums[stat_pos_name].ravel(), sums[stat_neg_name].ravel()
        square, absolute, predicted, q, clicks, total = (float(sums[n].sum()) for n in names)
        auc = self.get_global_auc(scope, stat_pos_name, stat_neg_name)
        each = 1.0 / total if total else 0.0
        ratio = clicks / predicted if predicted > 1e-6 * total and total else 0.0
        return [
            *(auc, bucket_error(positive, negative), absolute * each, (square * each) ** 0.5),
            *(clicks * each, predicted * each, ratio, q * each, total),
        ]

    def print_global_metrics(self, *args: Any, print_prefix: str = "", **kwargs: Any) -> None:
        """Print them."""
        words = ["AUC", "BUCKET_ERROR", "MAE", "RMSE", "Actual_CTR", "Predicted_CTR", "COPC"]
        words += ["MEAN Q_VALUE", "Ins number"]
        found = zip(words, self.get_global_metrics(*args, **kwargs), strict=True)
        told = " ".join(f"{word}={value}" for word, value in found)
        self.rank0_print(f"{print_prefix} {told}")

    # Saves by day and pass

    def save_model(self, output_path: str, day: Any, pass_id: Any) -> None:
        """Save everything that training needs to go on, under its day and pass."""
        fleet.save_persistables(None, _folder(output_path, day, pass_id))

    def save_batch_model(self, output_path: str, day: Any) -> None:
        """The same at the end of a day."""
        fleet.save_persistables(None, _folder(output_path, day, 0))

    def save_delta_model(self, output_path: str, day: Any, pass_id: Any) -> None:
        """Save rows that changed since the last such save."""
        fleet.save_persistables(None, _folder(output_path, day, f"delta-{pass_id}"), mode=1)

    def load_model(self, output_path: str, day: Any, pass_id: Any) -> None:
        """Take back what ``save_model`` saved."""
        self.load_fleet_model(_folder(output_path, day, pass_id))

    def load_fleet_model(self, path: str, mode: int = 0) -> None:
        """Let the servers have what a folder holds."""
        fleet.load_persistables(None, path)

    def save_paddle_inference_model(  # noqa: PLR0917 (the order of Paddle)
        self,
        executor: Any,
        scope: Any,
        program: Any,
        feeded_vars: Sequence[Any],
        target_vars: Sequence[Any],
        output_path: str,
        day: Any,
        pass_id: Any,
        *hadoop: Any,
        save_combine: bool = True,
        **more: Any,
    ) -> None:
        """Save a model for use elsewhere, under its day and pass; the first worker does."""
        if _index() == 0:
            folder = f"{_folder(output_path, day, pass_id)}/dnn_plugin"
            names = [var if isinstance(var, str) else var.name for var in feeded_vars]
            params = "params" if save_combine else None
            with scope_guard(scope or global_scope()):
                save_inference_model(
                    folder, names, list(target_vars), executor, program, None, params
                )
        roles.barrier_worker()

    def save_paddle_params(  # noqa: PLR0917 (the order of Paddle)
        self,
        executor: Any,
        scope: Any,
        program: Any,
        model_name: str,
        output_path: str,
        day: Any,
        pass_id: Any,
        hadoop_fs_name: Any = None,
        hadoop_fs_ugi: Any = None,
        hadoop_home: str = "$HADOOP_HOME",
        var_names: Sequence[str] | None = None,
        save_combine: bool = True,
    ) -> None:
        """Save variables of a program, under its day and pass; the first worker does."""
        if _index() == 0:
            folder = f"{_folder(output_path, day, pass_id)}/dnn_plugin"
            with scope_guard(scope or global_scope()):
                filename = model_name if save_combine else None
                save_vars(executor, folder, program, var_names, None, filename)
        roles.barrier_worker()

    def pull_all_dense_params(self, scope: Any, program: Any) -> None:
        """Noted: workers have the dense parameters of the servers after every update."""
        note("FleetUtil.pull_all_dense_params()", "workers have them after every update.")

    # Which saves there are

    def write_model_donefile(
        self,
        output_path: str,
        day: Any,
        pass_id: Any,
        xbox_base_key: Any,
        *hadoop: Any,
        donefile_name: str = MODEL_DONE,
        **more: Any,
    ) -> None:
        """Note in a list that a save is complete; the first worker does."""
        if _index() == 0:
            place = Path(output_path) / donefile_name
            model = _folder(output_path, day, 0 if int(pass_id) < 0 else pass_id)
            line = "\t".join(map(str, (day, xbox_base_key, model, pass_id, 0)))
            if not place.is_file() or line not in place.read_text().splitlines():
                place.parent.mkdir(parents=True, exist_ok=True)
                with place.open("a", encoding="utf-8") as file:
                    file.write(f"{line}\n")
        roles.barrier_worker()

    def get_last_save_model(self, output_path: str, *hadoop: Any, **more: Any) -> list[Any]:
        """Day, pass, folder and key of the last save in the list; -1 and nothing if none is."""
        place = Path(output_path) / MODEL_DONE
        lines = place.read_text().splitlines() if place.is_file() else []
        if not lines:
            return [-1, -1, "", int(time.time())]
        day, key, folder, number, *_ = lines[-1].split("\t")
        return [int(day), int(number), folder, int(key)]

    def write_xbox_donefile(
        self, output_path: str, day: Any, pass_id: Any, xbox_base_key: Any, *rest: Any, **more: Any
    ) -> None:
        """The same for models that services read, a line of JSON each."""
        if _index() == 0:
            place = Path(output_path) / more.get("donefile_name", "xbox_patch_done.txt")
            line = {
                "id": str(int(time.time())),
                "key": str(xbox_base_key),
                "input": _folder(output_path, day, f"delta-{pass_id}"),
                "record_count": "111111",
                "job_name": "default_job_name",
            }
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("a", encoding="utf-8") as file:
                file.write(f"{json.dumps(line)}\n")
        roles.barrier_worker()

    def get_online_pass_interval(
        self,
        days: str,
        hours: str,
        split_interval: Any,
        split_per_pass: Any,
        is_data_hourly_placed: bool,
    ) -> list[list[str]]:
        """The pieces of a day that each pass trains on: "0000", "0005", … or whole hours."""
        interval, per_pass = int(split_interval), int(split_per_pass)
        wanted = {int(hour) for hour in _expanded(hours)}
        pieces = []
        for number in range(24 * 60 // interval):
            hour, minute = divmod(number * interval, 60)
            if hour in wanted:
                pieces.append(f"{hour:02d}" if is_data_hourly_placed else f"{hour:02d}{minute:02d}")
        return [pieces[at : at + per_pass] for at in range(0, len(pieces), per_pass)]


def bucket_error(positive: np.ndarray, negative: np.ndarray) -> float:
    """How far rates are from predictions, over groups of buckets with enough samples."""
    count, error, weight = len(positive), 0.0, 0.0
    begun, shown, expected, clicked = -1.0, 0.0, 0.0, 0.0
    for number, (hit, missed) in enumerate(zip(positive, negative, strict=True)):
        rate = number / count
        if abs(rate - begun) > SPAN:
            begun, shown, expected, clicked = rate, 0.0, 0.0, 0.0
        shown, clicked = shown + hit + missed, clicked + hit
        expected += rate * (hit + missed)
        if not shown or not expected:
            continue
        predicted = expected / shown
        if ((1 - predicted) / (predicted * shown)) ** 0.5 < PRECISE:
            error += abs(clicked / shown / predicted - 1) * shown
            weight, begun = weight + shown, -1.0
    return error / weight if weight else 0.0


def _index() -> int:
    return roles.worker_index() if roles.started() else 0


def _held(scope: Any, name: str) -> Any:
    found = (scope or global_scope()).find_var(name)
    return None if found is None else np.array(found.get_tensor())


def _everywhere(array: np.ndarray) -> np.ndarray:
    return np.asarray(roles.util.all_reduce(array, "sum")) if roles.started() else array


def _folder(output_path: str, day: Any, pass_id: Any) -> str:
    return f"{output_path}/{day}/{pass_id}"


def _expanded(text: str) -> list[str]:
    """Words of a shell's pattern, such as ``{0..23}``."""
    done = subprocess.run(["bash", "-c", f"echo -n {text}"], capture_output=True, check=True)
    return done.stdout.decode().split()
