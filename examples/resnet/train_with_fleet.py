"""Train a ResNet on images; the same script runs on one card, many cards and many machines.

fleetx data make flowers                                       # a small data set, if you have none
python train_with_fleet.py --data_dir=flowers                  # one process
fleetrun --gpus 0,1,2,3 train_with_fleet.py --data_dir=flowers # four cards
fleetrun --gpus none --nproc_per_node 2 train_with_fleet.py --data_dir=flowers   # two CPU workers

tensorboard --logdir output/tensorboard                        # watch it; or see output/curves.png
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

import fleetx as fleet
from fleetx import applications
from fleetx.data.images.files import labelled_files
from fleetx.data.images.views import parsed_shape
from fleetx.io import check_format
from fleetx.metrics import Accuracy

NEEDS = {
    "lars_coeff": "use_lars",
    "local_sgd_steps": "use_local_sgd",
    "local_sgd_is_warm_steps": "use_local_sgd",
}
"""Option -> the switch without which it would be ignored."""


def main() -> None:
    """Train, validate, save, export."""
    args = arguments()
    if args.export_format != "none":
        check_format(args.export_format)  # now, and not after days of training
    torch.manual_seed(args.seed)
    classes = args.class_dim or labelled_files(args.data_dir, "train").classes
    net = applications.build(args.model, class_dim=classes, width=args.width)
    strategy = strategy_of(args, net)
    fleet.init(is_collective=True, strategy=strategy)
    manager = fleet.CheckpointManager(args.output, resume=args.resume)
    # A last, smaller batch would be compiled and captured for itself.
    whole_batches = strategy.compile or strategy.cuda_graph
    train, val = loaders(args, net, whole_batches)
    updates = len(train) / batches_of_an_update(strategy)
    if args.use_local_sgd and strategy.localsgd_configs["k_steps"] > 1:
        strategy.localsgd_configs = {"begin_step": begin_step(args, updates)}

    model = fleet.distributed_model(net, criterion=net.criterion)
    decay = 0.0 if strategy.lars else weight_decay(args)  # LARS brings one of its own
    sgd = torch.optim.SGD(model.parameters(), args.lr, args.momentum_rate, weight_decay=decay)
    optimizer = fleet.distributed_optimizer(sgd)
    scheduler = LambdaLR(optimizer, warm_then_cosine(args, updates))
    run = Run(args, model, scheduler, (train, val), manager)
    run.is_compiled = not strategy.compile
    run.begin(optimizer, batches_of_an_update(strategy))
    for epoch in range(run.epoch, args.num_epochs):
        run.train_epoch(epoch)
        run.validate(epoch)
        run.save()
    run.close()
    if args.export_format != "none":
        export(args, model, classes)


class Run:
    """What the epochs share."""

    def __init__(
        self,
        args: argparse.Namespace,
        model: Any,
        scheduler: LambdaLR,
        loaders: tuple[fleet.DistributedLoader, fleet.DistributedLoader],
        manager: fleet.CheckpointManager,
    ) -> None:
        self.args, self.model, self.manager = args, model, manager
        self.scheduler, (self.train, self.val) = scheduler, loaders
        self.epoch = self.step = 0
        self.is_compiled = True
        self.board: SummaryWriter | None = None

    def begin(self, optimizer: fleet.DistributedOptimizer, batches: int) -> None:
        """Go on from the latest checkpoint, also inside an epoch and on other workers."""
        found = self.manager.load(
            self.model, optimizer, parts={"train": self.train, "scheduler": self.scheduler}
        )
        if found is not None:
            alike = found["workers"] == fleet.worker_num()
            self.step = found["batch"] if alike else found["step"] * batches
            self.epoch = found["epoch"]
            say(f"resumed from step {self.step}")
        elif self.args.resume:
            say(f"{self.args.output} has no checkpoint to resume from: training begins anew")
        if fleet.is_first_worker():
            # Points after the one from which the run goes on are those of a run that stopped.
            kept = self.step + 1 if self.step else 0
            self.board = SummaryWriter(self.args.output / "tensorboard", purge_step=kept)

    def train_epoch(self, epoch: int) -> None:
        """One pass, with a progress bar on the first worker."""
        self.model.train()
        meter, bar = Meter(), self.bar(epoch)
        for images, labels in self.train:
            # Forward, backward, update, and the next learning rate.
            began = time.perf_counter()
            loss = self.model.train_batch((images, labels), lr_scheduler=self.scheduler)
            self.step += 1
            if not self.is_compiled:
                self.tell_of_compiling(began)
            meter.add(loss, len(images))
            bar.update()
            if self.step % self.args.log_steps == 0:  # reading a loss waits for the card
                rate = float(self.scheduler.get_last_lr()[0])
                self.draw(loss=float(loss), images_per_second=meter.speed, lr=rate)
                bar.set_postfix(loss=f"{loss:.3f}", images_s=f"{meter.speed:.0f}", refresh=False)
            if self.args.save_steps and self.step % self.args.save_steps == 0:
                self.save()
            self.manager.step(self.place)
        bar.close()
        self.epoch = epoch + 1
        self.report = f"[Epoch {epoch + 1}] loss: {meter.loss:.5f}, {meter.speed:.1f} images/s"

    def tell_of_compiling(self, began: float) -> None:
        """How long the first batch took, which is compiled, and what the next run has of it."""
        self.is_compiled = True
        say(
            f"compiling took {time.perf_counter() - began:.0f} s; torch keeps the code on this "
            "machine, and the next run finds it there"
        )

    def bar(self, epoch: int) -> Any:
        """The progress of an epoch, which may have begun before a stop."""
        return tqdm(
            total=len(self.train),
            initial=self.step - epoch * len(self.train),
            desc=f"epoch {epoch + 1}/{self.args.num_epochs}",
            unit="batch",
            mininterval=0.5,
            disable=not fleet.is_first_worker(),
        )

    def validate(self, epoch: int) -> None:
        """How often the right class is first, or among the first five, over all workers."""
        top1, top5 = Accuracy(), Accuracy(topk=5)
        for images, labels in self.val:
            scores = self.model.eval_batch((images, labels), compute_loss=False)
            top1.update(scores, labels)
            top5.update(scores, labels)
        acc1, acc5 = top1.compute(), top5.compute()
        self.draw(acc1=acc1, acc5=acc5)
        say(f"{self.report}, acc1: {acc1:.5f}, acc5: {acc5:.5f}")

    @property
    def place(self) -> dict[str, int]:
        """What the loop must know besides to go on exactly."""
        return {"epoch": self.epoch, "batch": self.step}

    def save(self) -> None:
        """Weights, optimizer, and the place in the data, while training goes on."""
        self.manager.save(self.place)

    def draw(self, **scalars: float) -> None:
        """A point in each curve of TensorBoard."""
        if self.board is not None:
            for name, value in scalars.items():
                self.board.add_scalar(name, value, self.step)

    def close(self) -> None:
        """Write what the curves still hold back, and a picture of them."""
        if self.board is None:
            return
        self.board.close()
        try:
            folder = self.args.output
            say(f"saved {applications.save_curves(folder / 'tensorboard', folder / 'curves.png')}")
        except ModuleNotFoundError as missing:
            say(f"no curves.png, because {missing.name} is not installed")


class Meter:
    """The mean loss of this worker, and the speed of all."""

    def __init__(self) -> None:
        self.began, self.images, self.batches = time.perf_counter(), 0, 0
        self.total: Any = 0.0

    def add(self, loss: torch.Tensor, images: int) -> None:
        """Count a batch; nothing waits for the card."""
        self.total, self.batches = self.total + loss.detach(), self.batches + 1
        self.images += images

    @property
    def loss(self) -> float:
        """The mean."""
        return float(self.total) / max(1, self.batches)

    @property
    def speed(self) -> float:
        """Images per second."""
        return self.images * fleet.data_num() / (time.perf_counter() - self.began)


def strategy_of(args: argparse.Namespace, net: Any) -> fleet.DistributedStrategy:  # noqa: C901
    """The switches of the command line; a whole strategy may come from a file."""
    strategy = fleet.DistributedStrategy()
    if args.strategy:
        strategy.load_from_prototxt(args.strategy)
        if strategy.lars and not args.use_lars and args.l2_decay is not None:
            raise ValueError(
                f"--l2_decay={args.l2_decay} does nothing, for {args.strategy} has lars with a "
                "decay of its own; set lars_weight_decay there, or leave --l2_decay out"
            )
    if args.fp16:
        strategy.amp = True
        strategy.amp_configs = {"init_loss_scaling": 128.0, "use_dynamic_loss_scaling": True}
        # Counted, because is_available() starts the driver, which takes its settings then.
        if not torch.cuda.device_count():
            # Most processors convolve in 16 bits a hundred times slower than in 32.
            strategy.amp_configs = {"custom_black_list": ["conv2d"]}
    if args.use_recompute:
        strategy.recompute = True
        strategy.recompute_configs = {"checkpoints": net.checkpoints}
    if args.use_lars:
        strategy.lars = True
        strategy.lars_configs = {
            "lars_coeff": 0.001 if args.lars_coeff is None else args.lars_coeff,
            "lars_weight_decay": weight_decay(args),
            "exclude_from_weight_decay": spared(net),
        }
    if args.use_local_sgd:
        strategy.localsgd = True
        strategy.localsgd_configs = {"k_steps": args.local_sgd_steps or 4}
    for name, wanted in (
        ("dgc", args.use_dgc),
        ("fp16_allreduce", args.use_fp16_allreduce),
        ("sync_batch_norm", args.use_sync_batch_norm),
        ("sharding", args.use_sharding),
        ("compile", args.use_compile),
        ("cuda_graph", args.use_cuda_graph),
    ):
        if wanted:
            setattr(strategy, name, True)
    if args.gradient_merge_steps is not None:
        strategy.gradient_merge_configs = {"k_steps": args.gradient_merge_steps}
        strategy.gradient_merge = args.gradient_merge_steps > 1
    return strategy


def weight_decay(args: argparse.Namespace) -> float:
    """The one that was given, or the usual one."""
    return 1e-4 if args.l2_decay is None else float(args.l2_decay)


def spared(net: torch.nn.Module) -> list[str]:
    """What LARS leaves alone: batch norms and biases, as far as the network has them."""
    norms = any(isinstance(module, torch.nn.BatchNorm2d) for module in net.modules())
    biases = any(name.endswith("bias") for name, _ in net.named_parameters())
    return ["batch_norm"] * norms + [".b_0"] * biases


def batches_of_an_update(strategy: fleet.DistributedStrategy) -> int:
    """The switches and a strategy file have their say before anybody counts updates."""
    return int(strategy.gradient_merge_configs["k_steps"]) if strategy.gradient_merge else 1


def begin_step(args: argparse.Namespace, updates: float) -> int:
    """Updates after each of which workers meet: until the learning rate falls, if none is given."""
    given = args.local_sgd_is_warm_steps
    return max(1, round(updates * (args.warm_up_epochs if given is None else given)))


def loaders(
    args: argparse.Namespace, net: Any, whole_batches: bool
) -> tuple[fleet.DistributedLoader, fleet.DistributedLoader]:
    """This worker's share of the images."""
    shape = parsed_shape(args.image_shape)
    options = {
        "image_shape": shape,
        "lower_scale": args.lower_scale,
        "lower_ratio": args.lower_ratio,
        "upper_ratio": args.upper_ratio,
        "resize_short_size": args.resize_short_size or shape[1] * 8 // 7,
        "num_workers": args.reader_thread,
        "on_broken": args.on_broken,
        "decoder": args.decoder,
    }
    train = net.get_train_dataloader(
        args.data_dir, args.batch_size, seed=args.seed, drop_last=whole_batches, **options
    )
    return train, net.get_val_dataloader(args.data_dir, args.batch_size, **options)


def warm_then_cosine(args: argparse.Namespace, updates: float) -> Callable[[int], float]:
    """A learning rate that rises for some epochs, of so many updates, and falls along a cosine."""
    warm, last = args.warm_up_epochs * updates, args.num_epochs * updates

    def share(update: int) -> float:
        if update < warm:
            return (update + 1) / (warm + 1)
        return (1 + math.cos(math.pi * (update - warm) / max(1, last - warm))) / 2

    return share


def export(args: argparse.Namespace, model: Any, classes: int) -> None:
    """The trained model for a server: plain torch loads output/model/model.pt2."""
    weights = fleet.full_state_dict(model)
    if not fleet.is_first_worker():
        return
    net = applications.build(args.model, class_dim=classes, width=args.width)
    net.load_state_dict(weights)
    folder = args.output / "model"
    shape = parsed_shape(args.image_shape)
    applications.save_for_inference(net.eval(), folder, shape, format=args.export_format)
    say(f"saved {folder}")


def say(message: str) -> None:
    """Print on the first worker alone."""
    fleet.util.print_on_rank(message, 0)


def arguments() -> argparse.Namespace:
    """The command line; switches are written as Fleet's reference job writes them, --fp16=True."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(
        name: str,
        kind: Callable[[str], Any],
        default: Any,
        text: str,
        choices: list[str] | None = None,
    ) -> None:
        help = text if default is None else f"{text} (%(default)s)"
        parser.add_argument(f"--{name}", type=kind, default=default, choices=choices, help=help)

    add("model", str, "ResNet50", f"one of {', '.join(applications.names()[:6])}")
    add("data_dir", Path, Path("./ImageNet"), "train.txt and val.txt, or Flowers-102")
    add("output", Path, Path("output"), "for checkpoints, curves, a picture, the exported model")
    add("resume", switch, False, "go on from the latest checkpoint in --output")
    add("num_epochs", int, 90, "passes over the images")
    add("batch_size", int, 32, "images of a worker")
    add("lr", float, 0.1, "highest learning rate")
    add("warm_up_epochs", float, 5, "epochs in which it rises")
    add("momentum_rate", float, 0.9, "of the optimizer")
    add("l2_decay", float, None, "weight decay; by default 1e-4")
    add("seed", int, 0, "of weights, orders and crops")
    add("log_steps", int, 10, "batches between two points of a curve")
    add("save_steps", int, 0, "batches between two checkpoints inside an epoch; 0: none")
    add("export_format", str, "torch", "torch, onnx for both, or none", ["torch", "onnx", "none"])
    # The model and what it sees.
    add("class_dim", int, 0, "classes; 0: as many as the data has")
    add("width", int, 64, "channels of the first stage; smaller for small machines")
    add("image_shape", str, "3,224,224", "what the network sees")
    add("lower_scale", float, 0.08, "smallest area of a random crop")
    add("lower_ratio", float, 3 / 4, "smallest width per height of a random crop")
    add("upper_ratio", float, 4 / 3, "largest width per height of a random crop")
    add("resize_short_size", int, 0, "short side before the centre is cut out; 0: 8/7 of it")
    add("decoder", str, "auto", "who decodes: the cores, the card, or both", ["auto", "gpu", "cpu"])
    add("reader_thread", int, None, "processes that decode; by default as many as there are cores")
    add("on_broken", str, "skip", "skip or raise, when an image is broken")
    # Strategies.
    add("strategy", Path, None, "a DistributedStrategy saved as prototxt")
    add("fp16", switch, False, "mixed precision")
    add("use_recompute", switch, False, "compute activations again in backward")
    add("use_lars", switch, False, "a rate for every layer, for large batches")
    add("lars_coeff", float, None, "of LARS; by default 0.001")
    add("use_dgc", switch, False, "send the largest gradients alone")
    add("use_local_sgd", switch, False, "average weights now and then instead of gradients")
    add("local_sgd_steps", above_zero, None, "updates between two averagings; by default 4")
    add(
        "local_sgd_is_warm_steps", above_zero, None, "epochs before; by default as --warm_up_epochs"
    )
    add("use_fp16_allreduce", switch, False, "send gradients as float16")
    add("use_sync_batch_norm", switch, False, "statistics over all workers")
    add("use_sharding", switch, False, "spread the state over the workers")
    add("use_compile", switch, False, "code that torch.compile makes for this model")
    add("use_cuda_graph", switch, False, "a whole step as one CUDA graph")
    add("gradient_merge_steps", int, None, "batches of one update; by default 1")
    args = parser.parse_args()
    for option, needed in NEEDS.items():
        if getattr(args, option) is not None and not getattr(args, needed):
            parser.error(
                f"--{option} does nothing without --{needed}=True; set that as well, or leave "
                f"--{option} out (a --strategy file has options of its own)"
            )
    return args


def above_zero(text: str) -> int:
    """A number of at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return int(text)


def switch(text: str) -> bool:
    """True or False."""
    if text.lower() not in {"true", "false", "1", "0"}:
        raise argparse.ArgumentTypeError(f"{text!r} is neither True nor False")
    return text.lower() in {"true", "1"}


if __name__ == "__main__":
    main()
