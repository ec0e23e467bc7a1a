"""``fleetx verify``: does a running service answer what was computed offline?"""

import argparse
import sys
import traceback
from pathlib import Path

from fleetx.evaluate.comparison import Limits

EXAMPLES = """\
examples:
  fleetx verify --vectors vectors.safetensors --endpoint http://localhost:8080
  fleetx verify --vectors vectors.safetensors --endpoint grpc://localhost:8081 --report out/report

exit code: 0 when they agree, 1 when they do not, 2 when they could not be compared
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx verify``."""
    usual = Limits()
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument("--vectors", type=Path, required=True, help="what fleetx evaluate wrote")
    parser.add_argument("--endpoint", required=True, help="http://host:port or grpc://host:port")
    parser.add_argument(
        "--model_name", default="model", help="as the service calls it (default: %(default)s)"
    )
    parser.add_argument("--input_name", help="that of the model (default: the service is asked)")
    parser.add_argument("--data_dir", help="where the inputs are now, if they were moved")
    parser.add_argument("--batch_size", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds for one answer (default: %(default)s)"
    )
    for name, help in (
        ("max_abs", "largest difference, relative where numbers are above 1"),
        ("cosine", "smallest cosine"),
        ("agreement", "share of inputs whose top k agree"),
    ):
        value = getattr(usual, name)
        text = f"{help} (default: {value:g})"
        parser.add_argument(f"--{name}", type=float, default=value, help=text)
    parser.add_argument("--top_k", type=int, default=usual.top_k, help="(default: %(default)s)")
    parser.add_argument("--worst", type=int, default=8, help="inputs shown (default: %(default)s)")
    parser.add_argument(
        "--report", type=Path, default=Path("verify"), help="names .json and .html (%(default)s)"
    )


def run(args: argparse.Namespace) -> int:
    """Compare, write the report, say the result."""
    from fleetx.evaluate.clients import service_at
    from fleetx.evaluate.service import ServiceError
    from fleetx.evaluate.vectors import VectorFile
    from fleetx.evaluate.verify import answers, inputs_again, report_on, write

    limits = Limits(
        max_abs=args.max_abs, cosine=args.cosine, top_k=args.top_k, agreement=args.agreement
    )
    try:
        if min(args.batch_size, args.top_k) < 1:
            raise ValueError("--batch_size and --top_k must be at least 1")
        vectors = VectorFile.load(args.vectors)
        inputs = inputs_again(vectors, args.data_dir)
        service = service_at(
            args.endpoint, args.model_name, input_name=args.input_name, timeout=args.timeout
        )
        online = answers(service, vectors, inputs, args.batch_size)
        report = report_on(args.endpoint, vectors, online, inputs, limits=limits, shown=args.worst)
        files = write(report, args.report)
    except (ServiceError, ValueError, ImportError, OSError) as error:
        print(f"fleetx verify: error: {error}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()  # a fault of ours; Python's own exit code would be that of "no"
        return 2
    print(report.sentence)
    print(f"The report is in {' and '.join(str(path) for path in files)}.")
    return 0 if report.agree else 1
