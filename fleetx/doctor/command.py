"""``fleetx doctor``: looks at this machine, and lets two workers train on it."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from fleetx.doctor.finding import Check, Finding, findings

EXAMPLES = """\
examples:
  fleetx doctor                  look at everything, less than a minute
  fleetx doctor --quick          start no job
  fleetx doctor --json           for an issue, or for a script
  fleetrun --ips 10.0.0.1,10.0.0.2 -m fleetx.doctor.trial
                                 the two jobs, and the clocks, over several machines

Each line is ok, a note (it works here, and some jobs need more), or broken, with what to do. The
exit code is 1 if anything is broken.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx doctor``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--quick", action="store_true", help="start no workers")


def run(args: argparse.Namespace) -> int:
    """Look, and print each finding as soon as it is made."""
    seen: list[Finding] = []
    for finding in _look(quick=args.quick):
        seen.append(finding)
        if not args.json:
            print(finding.line(), flush=True)
    wrong = [finding.topic for finding in seen if finding.state == "broken"]
    if args.json:
        print(json.dumps({"ok": not wrong, "findings": [asdict(one) for one in seen]}, indent=1))
    elif wrong:
        print(f"fleetx doctor: broken: {', '.join(wrong)}")
    else:
        print("fleetx doctor: ready to train")
    return 1 if wrong else 0


def _look(*, quick: bool) -> Iterator[Finding]:
    from fleetx.doctor import software

    yield from findings([("versions", software.versions)])
    found = list(findings([("torch", software.torch_version)]))
    yield from found
    if all(finding.state != "broken" for finding in found):  # else nothing can be looked at
        yield from findings(_checks(quick=quick))


def _checks(*, quick: bool) -> list[tuple[str, Check]]:
    from fleetx.doctor import cards, machine, software, two_workers

    checks: list[tuple[str, Check]] = [
        ("packages", software.packages),
        ("cards", cards.cards),
        ("gloo and NCCL", cards.exchanges),
        ("links", cards.links),
        ("network", machine.network),
        ("shared memory", machine.shared_memory),
        ("ports", machine.ports),
        ("clock", machine.clock),
        ("file limits", machine.file_limits),
        ("numba", software.numba),
    ]
    return checks if quick else [*checks, ("two workers", two_workers.two_workers)]
