"""``fleetx evaluate``: the vectors of a model's last layer for all inputs of a list."""

import argparse
import sys
from pathlib import Path

EXAMPLES = """\
examples:
  fleetx evaluate --model ResNet50 --pretrained_model weights.safetensors --data_dir data \\
                  --output vectors.safetensors
  fleetx evaluate --model exported --data_dir data --output vectors.safetensors
  fleetrun --nproc_per_node 2 -m fleetx evaluate --model nets:make --data_dir data --output v.safetensors
"""  # noqa: E501


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``fleetx evaluate``."""
    parser.epilog, parser.formatter_class = EXAMPLES, argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--model",
        required=True,
        help="a name of fleetx.applications, module:factory, or a folder of save_inference_model",
    )
    parser.add_argument(
        "--pretrained_model", help="a safetensors file, a checkpoint, or a folder of such files"
    )
    parser.add_argument(
        "--class_dim", type=int, help="classes of a model by name (default: its usual number)"
    )
    parser.add_argument("--data_dir", required=True, help="the folder with the list")
    parser.add_argument("--output", type=Path, required=True, help="the safetensors file to write")
    parser.add_argument(
        "--list", default="val.txt", help="lines of 'path label' (default: %(default)s)"
    )
    parser.add_argument("--batch_size", type=int, default=32, help="(default: %(default)s)")
    parser.add_argument(
        "--image_shape",
        help="what the network sees (default: what a folder was exported for, else 3,224,224)",
    )
    parser.add_argument(
        "--resize_short_size",
        type=int,
        help="short side of an image before its centre is cut out (default: 8/7 of that)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file; under fleetrun every worker does its share."""
    from fleetx import roles
    from fleetx.data.images.views import parsed_shape
    from fleetx.evaluate.inputs import Inputs, Reading
    from fleetx.evaluate.models import usual_shape
    from fleetx.evaluate.offline import evaluate

    try:
        if args.batch_size < 1:
            raise ValueError(f"--batch_size must be at least 1, got {args.batch_size}")
        shape = parsed_shape(args.image_shape) if args.image_shape else usual_shape(args.model)
        reading = Reading(
            data_dir=str(Path(args.data_dir).resolve()),
            list_file=args.list,
            image_shape=shape,
            resize_short_size=args.resize_short_size or max(shape[1:]) * 8 // 7,
        )
        inputs = Inputs(reading)
        roles.start(is_collective=True)
        evaluate(
            args.model,
            inputs,
            args.output,
            pretrained=args.pretrained_model,
            batch_size=args.batch_size,
            class_dim=args.class_dim,
        )
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"fleetx evaluate: error: {error}", file=sys.stderr)
        return 2
    if roles.worker_index() == 0:
        print(f"{len(inputs)} vectors in {args.output}")
    return 0
