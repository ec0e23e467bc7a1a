"""``fleetx compat``: look at old scripts of Paddle Fleet, run them, move them on."""

import argparse
import json
import sys
from pathlib import Path

EXAMPLES = """\
examples:
  fleetx compat check train.py model.py    what they use of Paddle, and what is covered
  fleetx compat run train.py --lr 0.1      run one on PyTorch, as it is
  eval "$(fleetx compat env)"              let every python of this shell import paddle
  fleetx compat port train.py              the native version of what can be moved, as a diff
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx compat``."""
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    check = commands.add_parser("check", help="list what scripts use and whether it is covered")
    check.add_argument("scripts", nargs="+", type=Path, help="they are read, and not run")
    check.add_argument("--json", action="store_true", help="for programs")
    port = commands.add_parser("port", help="write the native version of what can be moved")
    port.add_argument("scripts", nargs="+", type=Path, help="old scripts")
    port.add_argument("--write", action="store_true", help="write the files instead of a diff")
    commands.add_parser("env", help="print lines for a shell, in which paddle can be imported")
    run_ = commands.add_parser("run", help="run an old script, as python -m fleetx.compat does")
    run_.add_argument("-m", dest="module", action="store_true", help="script is a module's name")
    run_.add_argument("script", help="the old script")
    run_.add_argument("args", nargs=argparse.REMAINDER, help="its own arguments")


def run(args: argparse.Namespace) -> int:
    """Do what the command line says."""
    if args.command == "env":
        return _env()
    if args.command == "run":
        from fleetx.compat.scripts import run as run_script

        run_script(args.script, args.args, module=args.module)
        return 0
    missing = [str(path) for path in args.scripts if not path.is_file()]
    if missing:
        print(f"fleetx compat: error: there is no file {', '.join(missing)}", file=sys.stderr)
        return 2
    return _check(args.scripts, args.json) if args.command == "check" else _port(args)


def _env() -> int:
    from fleetx.compat.imports import ENTRY
    from fleetx.compat.scripts import HASH_SEED

    # The shell that reads these lines knows what the variables are by then.
    print(f'export PYTHONPATH="{ENTRY}${{PYTHONPATH:+:$PYTHONPATH}}"')
    print(f'export {HASH_SEED}="${{{HASH_SEED}:-0}}"')
    return 0


def _check(scripts: list[Path], as_json: bool) -> int:
    from fleetx.compat.checking import check
    from fleetx.compat.reporting import told

    reports = [check(script) for script in scripts]
    if as_json:
        print(json.dumps([report.as_dict() for report in reports], indent=2))
    else:
        print("\n\n".join(told(report) for report in reports))
    return 0 if all(report.fine for report in reports) else 1


def _port(args: argparse.Namespace) -> int:
    from fleetx.compat.porting import diff, port

    code = 0
    for script in args.scripts:
        text = script.read_text(encoding="utf-8")
        try:
            ported = port(text, str(script))
        except SyntaxError as error:
            print(f"fleetx compat port: error: {error}", file=sys.stderr)
            code = 2
            continue
        if args.write:
            script.write_text(ported.text, encoding="utf-8")
        else:
            sys.stdout.write(diff(text, ported.text, str(script)))
        print(f"{script}: {ported.summary}", file=sys.stderr)
        code = code or (1 if ported.left else 0)
    return code
