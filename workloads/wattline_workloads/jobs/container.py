"""Run an image with Docker or Podman, and attribute its processes to the run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import wattline
from wattline.client import api as run_api
from wattline.client import gpus as gpu_choice
from wattline.client import recorder
from wattline.client.barrier import BarrierError
from wattline.client.messages import log_message, message_line
from wattline_workloads.jobs.base import JobParser, positive_int
from wattline_workloads.jobs.containers import (
    container_engine,
    created_container,
    output,
    score,
    spec,
)
from wattline_workloads.jobs.containers.container_engine import ContainerEngine, EngineError
from wattline_workloads.runner.signals import unwind_on_signal

_STOP_S = 10
_LAST_OUTPUT_S = 10.0


class _Options(JobParser):
    """Parser that lists the images, or reports a missing image, before a run starts."""

    def parse_args(  # type: ignore[override]  # the one overload that the jobs use
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        options = super().parse_args(args, namespace)
        if options.list_images:
            self.exit(_list_images(options.host))
        if not options.image_and_arguments:
            self.error("IMAGE is missing; give one of --list-images")
        return options


def parser() -> JobParser:
    options = _Options(
        prog="workloads job container",
        description=__doc__,
        allow_abbrev=False,
        usage="%(prog)s [options] IMAGE [-- ARGUMENTS...]",
        epilog="By default the container gets the GPUs that the run names, else none.",
    )
    options.add_argument(
        "image_and_arguments", nargs=argparse.REMAINDER, metavar="IMAGE [-- ARGUMENTS...]"
    )
    options.add_argument(
        "--list-images", action="store_true", help="list of the engine's images; no run is started"
    )
    options.add_argument(
        "--host",
        "--socket",
        metavar="URL|PATH",
        help="address of the engine; default: DOCKER_HOST, else the first socket found",
    )
    options.add_argument(
        "--pull",
        choices=("never", "missing", "always"),
        default="never",
        help="when to pull the image; default: never",
    )
    _add_container_options(options)
    _add_end_options(options)
    return options


def _add_container_options(options: JobParser) -> None:
    env = options.add_argument("--env", "-e", action="append", default=[], metavar="NAME[=VALUE]")
    env.type = spec.check_variable
    env.help = "variable of the container, by default with its value here; may be repeated"
    volume = options.add_argument(
        "--volume", "-v", action="append", default=[], metavar="SOURCE:TARGET[:ro]"
    )
    volume.type = spec.parse_volume
    volume.help = "mounted folder, or volume of the engine; may be repeated"
    shm = options.add_argument(
        "--shm-size", metavar="64g", help="size of /dev/shm; default: the engine's, usually 64m"
    )
    shm.type = spec.parse_engine_size
    options.add_argument(
        "--network",
        metavar="NAME",
        help="network of the container: host, none, or a network of the engine",
    )
    options.add_argument(
        "--container-name",
        metavar="NAME",
        help="name of the container; default: chosen by the engine",
    )
    options.add_argument(
        "--workdir", metavar="PATH", help="working directory; default: the image's"
    )
    options.add_argument(
        "--entrypoint", metavar="PROGRAM", help="program to run; default: the image's"
    )
    options.add_argument(
        "--container-gpus",
        metavar="0,1|UUID,…|all|none",
        help="GPUs of the container; default: the GPUs of the run",
    )


def _add_end_options(options: JobParser) -> None:
    options.add_argument(
        "--stop-timeout",
        type=positive_int,
        default=_STOP_S,
        metavar="SECONDS",
        help=f"time from SIGTERM to SIGKILL after an interruption; default: {_STOP_S}",
    )
    options.add_argument("--keep", action="store_true", help="keep the stopped container")
    options.add_argument(
        "--results-path",
        default=score.SCORE_PATH,
        metavar="PATH",
        help=f"file with the score in the container, like time: 123.4; default: {score.SCORE_PATH}",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with unwind_on_signal(), wattline.run("container") as run:
        try:
            sys.exit(_run(options, run))  # inside the run, which then ends as failed
        except (EngineError, BarrierError, gpu_choice.GpusError) as error:
            sys.exit(message_line(f"container: {error}"))
    return 0


def _run(options: argparse.Namespace, run: wattline.ActiveRun) -> int:
    run.phase("prepare")
    engine = container_engine.find_engine(options.host, os.environ)
    wanted = _container(options, _image(engine, options), run.run_id)
    with created_container.create_container(
        engine, wanted, options.stop_timeout, options.keep
    ) as container:
        streams = output.ContainerOutput(container, (sys.stdout.buffer, sys.stderr.buffer))
        try:
            run.barrier()
            run.phase("container")
            created_container.start_as_part_of_run(container, run.register)
            code = created_container.await_exit_code(container)
        except BaseException:
            created_container.stop_container(container, options.stop_timeout)
            raise
        finally:
            streams.wait(_LAST_OUTPUT_S)
        if recorder.FOLDER in os.environ:
            score.copy_results(
                container, options.results_path, Path(os.environ[recorder.FOLDER]) / "results"
            )
        if code == 0:
            numbers = score.read_score(container, options.results_path)
            run.result(**score.score_results(numbers))
    return code


def _image(engine: ContainerEngine, options: argparse.Namespace) -> str:
    image = str(options.image_and_arguments[0])
    name = None if options.pull == "always" else container_engine.resolve_image(engine, image)
    if name is None and options.pull != "never":
        log_message(f"pulling {image}")
        container_engine.pull_image(engine, image)
        name = container_engine.resolve_image(engine, image)
    if name is None:
        available = container_engine.describe_images(engine)
        raise EngineError(
            f"unknown image {image} at {engine.host}; {available}; add --pull missing to fetch it"
        )
    return name


def _container(options: argparse.Namespace, image: str, run_id: str | None) -> spec.ContainerSpec:
    arguments = options.image_and_arguments[1:]
    return spec.ContainerSpec(
        image=image,
        arguments=tuple(arguments[1:] if arguments[:1] == ["--"] else arguments),
        entrypoint=options.entrypoint,
        env=spec.resolve_environment(options.env, os.environ),
        volumes=tuple(options.volume),
        shm_bytes=options.shm_size,
        network=options.network,
        name=options.container_name,
        workdir=options.workdir,
        gpus=container_gpus(options.container_gpus, os.environ),
        labels={spec.LABEL: run_id or ""},
    )


def container_gpus(
    option: str | None,
    environ: Mapping[str, str],
    list_gpus: Callable[[], tuple[gpu_choice.VisibleGpu, ...]] = gpu_choice.list_visible_gpus,
) -> tuple[str, ...] | None:
    """Return the GPUs of `--container-gpus`, else of CUDA_VISIBLE_DEVICES; None: all, (): none.
    Raises GpusError.
    """
    if option == "none":
        return ()
    if option is not None:
        return gpu_choice.choose_gpus(option, environ, list_gpus).gpus
    if "CUDA_VISIBLE_DEVICES" not in environ:
        return ()
    if run_api.SIMULATION in environ:
        log_message("no GPU for the container: those of the run are simulated")
        return ()
    choice = gpu_choice.choose_gpus(None, environ, list_gpus)
    named = tuple(gpu for gpu in choice.gpus or () if not gpu.isdecimal())
    if choice.warning or named != choice.gpus:
        log_message(
            choice.warning
            or "no GPU for the container: nvidia-smi does not list those of CUDA_VISIBLE_DEVICES"
        )
        return ()
    return named


def _list_images(host: str | None) -> int:
    try:
        images = container_engine.list_images(container_engine.find_engine(host, os.environ))
    except EngineError as error:
        log_message(f"container: {error}")
        return 1
    width = max((len(image.name) for image in images), default=0)
    for image in images:
        print(f"{image.name:<{width}}  {image.bytes / 1_000_000:>8,.1f} MB  {image.created}")
    if not images:
        log_message(
            "container: the engine has no images; build one with "
            "workloads/wattline_workloads/jobs/containers/images/build.sh dummy"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
