"""What a step costs over slow links, for every legal set of flags about exchanges.

Two and four workers, each in a network namespace of its own behind a link of 10 Gbit/s, 1 Gbit/s
or 100 Mbit/s each way, train an MLP and a GPT-2 of transformers under each set of flags that
`compose()` lets pass: plain data parallel, every flag about exchanges, and their pairs. Times are
medians of rounds, one on each link in turn. A step is an update; it is held against this limit:

    max(the same step where links have no rate, bytes that explain() tells / rate of the link)

and where gradient_merge exchanges once for two batches, the first of them is added to the bytes.

Needs root (namespaces and rates of links). Nothing is left behind, also after Ctrl-C, and what was
measured until then is kept: the next run goes on from there.

python benchmarks/network.py                                   # everything: about an hour
python benchmarks/network.py --only plain dgc --links 100M --workers 2 --models mlp
python benchmarks/network.py --again --only "sharding*"        # measure these anew
python benchmarks/network.py --collectives                     # gloo by itself -> collectives.json
python benchmarks/network.py --list                            # the sets, and what each sends
python benchmarks/network.py --table                           # what is kept, as tables and a plot
"""

import argparse
import json
import sys
import time
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.exchanges.cases import legal, traffic  # noqa: E402
from benchmarks.exchanges.links import LINKS, NoLinks, why_not  # noqa: E402
from benchmarks.exchanges.measuring import Wanted, measure_cases, measure_collectives  # noqa: E402
from benchmarks.exchanges.models import MODELS  # noqa: E402
from benchmarks.exchanges.records import Records  # noqa: E402
from benchmarks.exchanges.tables import collective_lines, draw, lines  # noqa: E402

FOLDER = Path(__file__).parent


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    rates = [link for link, rate in LINKS.items() if rate]
    parser.add_argument("--only", nargs="+", default=["*"], help="sets by name or pattern")
    parser.add_argument("--links", nargs="+", choices=rates, default=rates)
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--rounds", type=int, default=3, help="of each case (default: 3)")
    parser.add_argument("--again", action="store_true", help="also what is known already")
    parser.add_argument("--collectives", action="store_true", help="measure gloo by itself")
    parser.add_argument("--list", action="store_true", help="print the sets and measure nothing")
    parser.add_argument("--table", action="store_true", help="print and draw what is kept")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where data is kept")
    return parser.parse_args()


def listed(asked: argparse.Namespace) -> None:
    """Every set and the bytes that a rank sends for an update."""
    for size in asked.workers:
        for flags in legal(size):
            for model in asked.models:
                told = traffic(flags, MODELS[model], size)
                print(f"{size} workers, {model}, {flags.name}: {told.sent:,.0f} bytes")
                for line in told.lines:
                    print(f"    {line}")


def main() -> None:
    """Measure, save, and print what is known then."""
    asked = arguments()
    records = Records(asked.folder / "network.json")
    if asked.list:
        listed(asked)
        return
    if not asked.table:
        if reason := why_not():
            sys.exit(
                f"benchmarks/network.py cannot measure here: {reason}. Run it as root, on Linux."
            )
        measure(asked, records)
    draw(records, asked.folder / "network.png")
    print("\n".join(lines(records)))
    if (kept := asked.folder / "collectives.json").exists():
        print("\n".join(collective_lines(json.loads(kept.read_text())["rows"])))


def measure(asked: argparse.Namespace, records: Records) -> None:
    """The cases, or the collectives."""
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {line}", flush=True)

    try:
        if asked.collectives:
            path = asked.folder / "collectives.json"
            measure_collectives(path, asked.workers, asked.links, asked.rounds, say)
            return
        wanted = Wanted(
            workers=asked.workers,
            models=asked.models,
            links=asked.links,
            flags=lambda name: any(fnmatch(name, pattern) for pattern in asked.only),
            rounds=asked.rounds,
            again=asked.again,
        )
        measure_cases(records, wanted, say)
    except KeyboardInterrupt:
        say("stopped; what was measured is kept")
    except NoLinks as error:
        sys.exit(f"benchmarks/network.py cannot measure here: {error}")


if __name__ == "__main__":
    main()
