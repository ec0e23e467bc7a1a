"""``fleetx init``: four questions, a strategy file, and the line that starts the job."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetx.config.distributed_strategy import DistributedStrategy

EXAMPLES = """\
examples:
  fleetx init                                    ask four questions about a job of train.py
  fleetx init --yes                              take the answers that fit this machine
  fleetx init --machines 2 --workers 8 --model large --precision bfloat16 finetune.py
  fleetx init --machines 10.0.0.1,10.0.0.2 --workers 4 --model fits --precision float32

What a flag says is not asked. The script loads the file with
strategy.load_from_prototxt("strategy.prototxt"); `fleetx plan` finds better ones by comparing.
"""

MODELS = {
    "fits": "it fits, with its optimizer, into the memory of one worker",
    "tight": "it fits, but with its optimizer it does not",
    "large": "it does not fit",
}
PRECISIONS = {
    "float32": "all digits",
    "bfloat16": "mixed precision, on cards since Ampere and on CPUs that know it",
    "float16": "mixed precision with a loss scale, on any card",
}


class _Refused(Exception):
    """An answer that cannot be meant, in a sentence."""


@dataclass(frozen=True)
class _Question:
    """What is asked, unless a flag has said it."""

    name: str
    text: str
    usual: str
    read: Callable[[str], str]
    """The answer in one spelling, or `_Refused`."""


@dataclass(frozen=True)
class _Answers:
    machines: str
    workers: int
    model: str
    precision: str

    @property
    def addresses(self) -> list[str]:
        """Of the machines, where they were given and not counted."""
        return [] if self.machines.isdecimal() else self.machines.split(",")

    @property
    def nodes(self) -> int:
        """How many machines there are."""
        return len(self.addresses) or int(self.machines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx init``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--machines", help="how many, or their addresses with commas")
    parser.add_argument("--workers", help="on each machine: its cards, or processes on the CPU")
    parser.add_argument("--model", help=f"{_choices(MODELS)}: does it fit?")
    parser.add_argument("--precision", help=_choices(PRECISIONS))
    parser.add_argument("--yes", action="store_true", help="ask nothing, take the usual answers")
    parser.add_argument(
        "--output", type=Path, default=Path("strategy.prototxt"), help="(default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument(
        "script", nargs="?", default="train.py", help="of the job (default: %(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Ask, check that the plan can be made, write, and say what to type."""
    try:
        _check_place(args.output, force=args.force)
        answers = _answers(args)  # torch, which takes seconds, is loaded after the last one
        strategy = _strategy(answers)
        told = _explained(strategy, answers)
        line = fleetrun_line(answers, args.script)
        _write(args.output, _text(strategy, line), force=args.force)
    except _Refused as error:
        print(f"fleetx init: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nfleetx init: stopped; nothing was written", file=sys.stderr)
        return 130
    print(told)
    print(f"fleetx init: wrote {args.output}; in {args.script}:")
    print(f"    strategy.load_from_prototxt({str(args.output)!r})")
    print("    fleet.init(is_collective=True, strategy=strategy)")
    print(f"fleetx init: start it{' on every machine' * (answers.nodes > 1)} with:\n    {line}")
    return 0


def _check_place(output: Path, *, force: bool) -> None:
    if output.is_dir():
        raise _Refused(f"--output {output} is a folder; name a file in it")
    if output.exists() and not force:
        raise _Refused(
            f"{output} exists, and is kept; add --force to write over it, or choose --output"
        )


def _answers(args: argparse.Namespace) -> _Answers:
    found = {each.name: _answer(each, args) for each in _questions()}
    return _Answers(found["machines"], int(found["workers"]), found["model"], found["precision"])


def _questions() -> list[_Question]:
    from fleetx.launch.devices import here

    cards = here()
    return [
        _Question("machines", "How many machines, or which addresses (a,b)?", "1", _machines),
        _Question(
            "workers",
            "How many workers on each (cards, or CPU processes)?",
            f"{cards or 2}",
            _count,
        ),
        _Question("model", f"The model:\n{_listed(MODELS)}\nWhich one?", "fits", _one_of(MODELS)),
        _Question(
            "precision",
            f"Numbers of the forward and backward passes:\n{_listed(PRECISIONS)}\nWhich ones?",
            "bfloat16" if cards else "float32",
            _one_of(PRECISIONS),
        ),
    ]


def _answer(question: _Question, args: argparse.Namespace) -> str:
    """What the flag says; else the usual answer, or that of whoever is asked, until it is one."""
    if (given := getattr(args, question.name)) is not None:
        try:
            return question.read(given)
        except _Refused as error:
            raise _Refused(f"--{question.name} {given}: {error}") from None
    if args.yes:
        return question.usual
    while True:
        try:
            said = input(f"{question.text} [{question.usual}] ").strip()
        except EOFError:
            raise _Refused(
                f"nobody answers; give --{question.name}, or --yes for the usual answers"
            ) from None
        try:
            return question.read(said) if said else question.usual
        except _Refused as error:
            print(f"  {error}")


def _machines(text: str) -> str:
    if text.isdecimal():
        return _count(text)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) < 2 or not all(parts) or len({*parts}) < len(parts):
        raise _Refused(
            f"{text!r} is neither a number of machines nor a list of their addresses, such as "
            "10.0.0.1,10.0.0.2"
        )
    return ",".join(parts)


def _count(text: str) -> str:
    if not text.isdecimal() or not 1 <= int(text) <= 1 << 20:
        raise _Refused(f"{text!r} is not a whole number of at least 1")
    return str(int(text))


def _one_of(known: dict[str, str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        from fleetx.near_names import did_you_mean

        if text.lower() not in known:
            raise _Refused(f"{text!r} is none of these; {did_you_mean(text, known)}")
        return text.lower()

    return read


def _strategy(answers: _Answers) -> "DistributedStrategy":
    """All of it is said, also what is off, so that the file shows where to change it."""
    from fleetx.config.distributed_strategy import DistributedStrategy

    strategy = DistributedStrategy()
    strategy.amp = answers.precision != "float32"
    if answers.precision == "bfloat16":
        strategy.amp_configs = {"dtype": "bfloat16"}
    elif answers.precision == "float16":
        strategy.amp_configs = {"dtype": "float16"}
    strategy.sharding = answers.model != "fits"
    if strategy.sharding:
        strategy.sharding_configs = {"stage": 3 if answers.model == "large" else 2}
    return strategy


def _explained(strategy: "DistributedStrategy", answers: _Answers) -> str:
    from fleetx.plan.error import PlanError

    try:
        return strategy.explain(workers=answers.nodes * answers.workers)
    except PlanError as error:
        raise _Refused(str(error)) from None


def fleetrun_line(answers: _Answers, script: str) -> str:
    """What starts the job, on each of its machines."""
    words = ["fleetrun"]
    if answers.addresses:
        words += ["--ips", answers.machines]
    elif answers.nodes > 1:
        words += ["--nnodes", str(answers.nodes), "--master", "FIRST_MACHINE:6379"]
    return shlex.join([*words, "--nproc_per_node", str(answers.workers), script])


def _text(strategy: "DistributedStrategy", line: str) -> str:
    from fleetx.config.prototxt import dump

    return f"# Made by fleetx init; start with: {line}\n{dump(strategy.explicit())}"


def _write(output: Path, text: str, *, force: bool) -> None:
    """The whole file or nothing, whenever somebody stops it."""
    partial = output.with_name(f"{output.name}.{os.getpid()}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        _check_place(output, force=force)  # somebody may have been faster than the answers
        partial.replace(output)
    except OSError as error:
        raise _Refused(f"--output {output} cannot be written ({error.strerror})") from None
    finally:
        partial.unlink(missing_ok=True)


def _choices(known: dict[str, str]) -> str:
    return ", ".join(known)


def _listed(known: dict[str, str]) -> str:
    return "\n".join(f"  {name:<10} {text}" for name, text in known.items())
