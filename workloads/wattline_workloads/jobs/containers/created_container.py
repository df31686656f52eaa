"""Container of a job: its creation, start, exit code and removal."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from wattline.client.messages import log_message
from wattline_workloads.jobs.containers.container_engine import (
    ContainerEngine,
    EngineError,
    describe_images,
    engine_errors,
    error_cause,
    find_engine,
    with_remedy,
)
from wattline_workloads.jobs.containers.spec import ContainerSpec, docker_body, podman_body
from wattline_workloads.runner.watchdog import Watchdog, WatchedParent

_LIBPOD = "/v4.0.0/libpod"
_ROUNDING_S = 0.1


@dataclass(frozen=True, slots=True)
class CreatedContainer:
    engine: ContainerEngine
    id: str
    image: str
    since_boot_s: float
    """Boot time in seconds, before the start of all its processes."""


@contextlib.contextmanager
def create_container(
    engine: ContainerEngine, spec: ContainerSpec, stop_s: int, keep: bool
) -> Iterator[CreatedContainer]:
    """Create a container, and on exit stop and remove it; `keep` only stops it.

    Raises EngineError.
    """
    with _watched(engine, stop_s, keep) as watchdog:
        since_boot_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        container = CreatedContainer(engine, _create(engine, spec), spec.image, since_boot_s)
        try:
            watchdog.send(container.id)
            yield container
        finally:
            remove_container(container, stop_s, keep)
            watchdog.report_normal_end()


def _create(engine: ContainerEngine, spec: ContainerSpec) -> str:
    failure = f"cannot create a container of {spec.image}"
    with engine_errors(failure):
        if not engine.is_podman:
            created = engine.api.create_container_from_config(docker_body(spec), spec.name)
            return str(created["Id"])
        url = f"{engine.api.base_url}{_LIBPOD}/containers/create"
        response = engine.api.post(url, json=podman_body(spec))
        if response.status_code == 201:
            return str(response.json()["Id"])
        raise EngineError(
            f"{failure}: {with_remedy(str(response.json().get('message') or response.text))}"
        )
    raise AssertionError


@contextlib.contextmanager
def _watched(engine: ContainerEngine, stop_s: int, keep: bool) -> Iterator[Watchdog]:
    """Run a watchdog that removes the container if this process is killed."""
    arguments = [engine.host, str(stop_s), str(int(keep))]
    watchdog = Watchdog(remove_abandoned_container, arguments, os.environ)
    try:
        yield watchdog
    finally:
        watchdog.close()


def remove_abandoned_container(parent: WatchedParent, host: str, stop_s: str, keep: str) -> int:
    """Remove the container whose id the job sent, if the job was killed."""
    messages = parent.await_end()
    if not messages:
        return 0
    container_id = messages[0]
    try:
        engine = find_engine(host, os.environ)
    except EngineError as error:
        log_message(f"container {container_id[:12]} of the killed job remains: {error}")
        return 1
    log_message(f"the job was killed; stopping its container {container_id[:12]}")
    remove_container(CreatedContainer(engine, container_id, "", 0.0), int(stop_s), keep == "1")
    return 0


def remove_container(container: CreatedContainer, stop_s: int, keep: bool) -> None:
    """Stop and remove the container and its anonymous volumes. Errors are logged."""
    stop_container(container, stop_s)
    if keep:
        log_message(f"the container is kept: {container.id[:12]}")
        return
    with _logged_errors(container):
        container.engine.api.remove_container(container.id, v=True, force=True)


def stop_container(container: CreatedContainer, stop_s: int) -> None:
    """Stop the container by SIGTERM, after `stop_s` by SIGKILL. Errors are logged."""
    with _logged_errors(container):
        container.engine.api.stop(container.id, timeout=stop_s)


@contextlib.contextmanager
def _logged_errors(container: CreatedContainer) -> Iterator[None]:
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.NotFound:  # it was removed by another program
        pass
    except (docker.errors.DockerException, requests.RequestException) as error:
        log_message(
            f"container {container.id[:12]} remains: {error_cause(error)}; remove it manually"
        )


def attach_output(container: CreatedContainer) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return pairs of chunks of stdout and stderr. Raises EngineError, since Podman prepares the
    start here.
    """
    with _starting(container):
        chunks: Iterator[tuple[bytes | None, bytes | None]] = container.engine.api.attach(
            container.id, stdout=True, stderr=True, stream=True, logs=True, demux=True
        )
    return chunks


def start_container(container: CreatedContainer) -> int | None:
    """Start the container; return its first pid in the engine's namespace, None if it has ended.
    Raises EngineError.
    """
    with _starting(container):
        container.engine.api.start(container.id)
    return int(_state(container).get("Pid") or 0) or None


@contextlib.contextmanager
def _starting(container: CreatedContainer) -> Iterator[None]:
    try:
        with engine_errors(f"cannot start {container.image}"):
            yield
    except EngineError as error:
        raise EngineError(f"{error}; {describe_images(container.engine)}") from error


def await_exit_code(container: CreatedContainer) -> int:
    """Wait for the exit code. Raises EngineError if container or engine is lost."""
    with engine_errors(f"lost container {container.id[:12]}"):
        code = int(container.engine.api.wait(container.id)["StatusCode"])
    if _state(container).get("OOMKilled"):
        log_message("the container ran out of memory and was killed")
    return code


def is_running(container: CreatedContainer) -> bool:
    """Return whether the container runs. Raises EngineError."""
    return bool(_state(container).get("Running"))


def _state(container: CreatedContainer) -> dict[str, Any]:
    with engine_errors(f"lost container {container.id[:12]}"):
        return dict(container.engine.api.inspect_container(container.id)["State"])


def started_at(container: CreatedContainer) -> float:
    """Return the start in Unix seconds of the engine's clock. Raises EngineError."""
    return datetime.fromisoformat(str(_state(container)["StartedAt"])).timestamp()


def start_as_part_of_run(container: CreatedContainer, register: Callable[..., str | None]) -> None:
    """Start the container and register its processes with the run, by cgroup and first pid. Raises
    EngineError.

    The reason is logged if the exporter rejects both while the container runs.
    """
    pid = start_container(container)
    if pid is None:  # it has ended
        return
    cgroup = f"container:{container.id}"
    pids = [pid] if is_started_since(pid, container.since_boot_s) else []
    bodies: list[dict[str, Any]] = (
        [{"pids": pids, "cgroup": cgroup}, {"pids": pids}] if pids else [{"cgroup": cgroup}]
    )
    for body in bodies:
        rejection = register(**body)
        if rejection is None:
            return
    if is_running(container):
        log_message(f"cannot register the container's processes with the run: {rejection}")


def is_started_since(pid: int, since_boot_s: float, proc: Path = Path("/proc")) -> bool:
    """Return whether the pid's process started since then; in another pid namespace it is a
    different process.
    """
    try:
        fields = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") >= since_boot_s - _ROUNDING_S
