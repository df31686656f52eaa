"""Train ResNet-50 on synthetic images or a folder of images."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import wattline
from wattline.client.barrier import BarrierError
from wattline.client.messages import message_line
from wattline_workloads.jobs.base import (
    JobParser,
    job_parser,
    percentile_results,
    positive_int,
    positive_seconds,
)
from wattline_workloads.jobs.kernels import torch_device
from wattline_workloads.jobs.vision import training
from wattline_workloads.runner.signals import KERNEL_UNWIND_LIMIT_S, unwind_on_signal

_IMAGENET_IMAGES = 1_281_167
_IMAGENET_CLASSES = 1000
_DEPTHS = "3,4,6,3"
_TRAINING_FLOP = 24.3e9  # forward and backward pass of a 224 × 224 image, from torch's FLOP counter
_SIMULATED_UTILIZATION = 0.9
_BYTES_PER_PIXEL = 1750  # approximate activations: 128 images of 224 × 224 need 11 GB

Step = Callable[[], Mapping[str, float]]
"""Training of one batch; returns its measured values."""


def parser() -> JobParser:
    options = job_parser("resnet", __doc__)
    options.add_argument(
        "--batch-size",
        type=positive_int,
        default=64,
        metavar="B",
        help="images per step over all GPUs; default: 64",
    )
    options.add_argument(
        "--image-size",
        type=positive_int,
        default=224,
        metavar="PIXELS",
        help="width and height of the images; default: 224",
    )
    options.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="folder with one subfolder of images per class; default: synthetic images",
    )
    until = options.add_mutually_exclusive_group()
    until.add_argument(
        "--duration",
        type=positive_seconds,
        default=30.0,
        metavar="SECONDS",
        help="duration of the measurement; default: 30",
    )
    until.add_argument("--iterations", type=positive_int, metavar="N", help="number of steps")
    until.add_argument(
        "--epochs",
        type=positive_int,
        metavar="E",
        help="number of epochs; an epoch of synthetic images has the size of ImageNet",
    )
    options.add_argument(
        "--warmup",
        type=positive_int,
        default=3,
        metavar="N",
        help="warm-up steps, not measured; default: 3",
    )
    options.add_argument(
        "--dtype",
        choices=training.DTYPES,
        default="float32",
        help="number format; default: float32",
    )
    options.add_argument(
        "--label-smoothing",
        type=_ratio,
        default=0.0,
        metavar="RATIO",
        help="label smoothing; default: 0",
    )
    options.add_argument(
        "--depths",
        type=_depths,
        default=_DEPTHS,
        metavar="N,N,N,N",
        help=f"blocks per stage; default: {_DEPTHS}, ResNet-50",
    )
    options.add_argument(
        "--workers",
        type=positive_int,
        default=8,
        metavar="N",
        help="threads that read images; default: 8",
    )
    options.add_argument(
        "--seed",
        type=int,
        default=0,
        metavar="N",
        help="seed of weights, images and order; default: 0",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if os.environ.get("WORLD_SIZE", "1") not in {"", "1"}:
        text = (
            "resnet: one process uses all GPUs of the run; start it without a launcher, with "
            "--gpus 0,1"
        )
        sys.exit(message_line(text))
    with unwind_on_signal(KERNEL_UNWIND_LIMIT_S), wattline.run("resnet", unit="images") as run:
        try:
            run.phase("load")
            images = training.find_images(options.images) if options.images else None
            step_context = (
                _simulated(run.simulation, options) if run.simulation else _real(options, images)
            )
            with step_context as step:
                run.result(**_train(run, step, options, _steps(options, images)))
        except (ValueError, BarrierError) as error:
            sys.exit(message_line(f"resnet: {error}"))
        except RuntimeError as error:  # includes CUDA's errors
            cause = str(error).splitlines()[0]
            text = f"resnet: {cause}; a smaller --batch-size needs less memory"
            sys.exit(message_line(text))
    return 0


def _train(
    run: wattline.ActiveRun, step: Step, options: argparse.Namespace, steps: float
) -> dict[str, float]:
    """Train and return the results; a step's wall time includes reading its images."""
    run.phase("warmup")
    for _ in range(options.warmup):
        step()
    run.barrier()
    run.phase("measure")
    each_s = array("d")
    values: Mapping[str, float] = {}
    begin_s = now_s = time.perf_counter()
    while len(each_s) < steps and (steps < math.inf or now_s - begin_s < options.duration):
        values = step()
        before_s = now_s
        now_s = time.perf_counter()
        each_s.append(now_s - before_s)
        run.iteration(now_s - before_s, values, images=options.batch_size, steps=1)
    run.phase("rest")
    loss = {"loss": values["loss"]} if "loss" in values else {}
    images = len(each_s) * options.batch_size
    return {
        "images_per_second": images / (now_s - begin_s),
        **loss,
        **percentile_results("step_seconds", each_s),
    }


def _steps(options: argparse.Namespace, images: training.ImageFolder | None) -> float:
    """Return the number of steps, infinite if the duration ends the training."""
    if options.epochs:
        count = len(images.files) if images else _IMAGENET_IMAGES
        return float(options.epochs * (count // options.batch_size))
    return float(options.iterations or math.inf)


@contextlib.contextmanager
def _real(options: argparse.Namespace, images: training.ImageFolder | None) -> Iterator[Step]:
    torch_device.require_modules("torch", "transformers", *(["PIL"] if images else []))
    devices = torch_device.torch_devices()
    settings = training.TrainingSettings(
        options.batch_size,
        options.image_size,
        len(images.classes) if images else _IMAGENET_CLASSES,
        options.depths,
        options.dtype,
        options.label_smoothing,
        options.seed,
    )
    trainer = training.ResnetTrainer(devices, settings)
    if images:
        batches = training.read_images(images, devices[0], settings, options.workers)
    else:
        batches = training.synthetic_images(devices[0], settings)

    def step() -> dict[str, float]:
        batch, labels = next(batches)
        losses = []
        device_s = torch_device.time_on_device(
            devices[0], lambda: losses.append(trainer.step(batch, labels))
        )
        return {"loss": float(losses[0]), "device_seconds": device_s}

    with contextlib.closing(batches):
        yield step


@contextlib.contextmanager
def _simulated(path: str, options: argparse.Namespace) -> Iterator[Step]:
    """Simulate the steps, without a loss and independent of the number format."""
    from wattline_workloads.runner.simulated_gpu import drive_simulated_gpus

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    pixels = options.batch_size * options.image_size**2
    flop = _TRAINING_FLOP * sum(options.depths) / 16 * pixels / 224**2
    with drive_simulated_gpus(
        Path(path), visible, pixels * _BYTES_PER_PIXEL, _SIMULATED_UTILIZATION
    ) as gpus:

        def step() -> dict[str, float]:
            due_s = max(gpu.start(flop / len(gpus) / gpu.peak_flop_per_s)[1] for gpu in gpus)
            time.sleep(max(0.0, due_s - time.monotonic()))
            return {}

        yield step


def _depths(text: str) -> tuple[int, ...]:
    depths = tuple(int(part) for part in text.split(","))
    if len(depths) != 4 or min(depths) < 1:
        raise argparse.ArgumentTypeError(
            f"{text} is not a list of four positive numbers; give it like {_DEPTHS}"
        )
    return depths


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a ratio; give a number from 0 to below 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
