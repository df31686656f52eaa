"""One container from its creation to its removal."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workloads.client.messages import log_message
from workloads.jobs.containers.container import Container, docker_body, podman_body
from workloads.jobs.containers.docker_engine import Engine, EngineError, reason, remedied, speaking, what_is_there

DONE = "done"
"""What the guard is told once the container has been ended."""
_LIBPOD = "/v4.0.0/libpod"


@dataclass(frozen=True, slots=True)
class Created:
    engine: Engine
    id: str
    image: str
    since_boot_s: float
    """Younger than that are all of its processes."""


@contextlib.contextmanager
def created(engine: Engine, container: Container, stop_s: int, keep: bool) -> Iterator[Created]:
    """Not started yet. On leaving, however that comes, it is stopped and removed, or only stopped with `keep`.

    Raises EngineError.
    """
    with _guarded(engine, stop_s, keep) as tell_guard:
        begun_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        made = Created(engine, _create(engine, container), container.image, begun_s)
        try:
            tell_guard(made.id)
            yield made
        finally:
            end(made, stop_s, keep)
            tell_guard(DONE)


def _create(engine: Engine, container: Container) -> str:
    what = f"no container can be made of {container.image}"
    with speaking(what):
        if not engine.is_podman:
            made = engine.api.create_container_from_config(docker_body(container), container.name)
            return str(made["Id"])
        url = f"{engine.api.base_url}{_LIBPOD}/containers/create"
        answer = engine.api.post(url, json=podman_body(container))
        if answer.status_code == 201:
            return str(answer.json()["Id"])
        raise EngineError(f"{what}: {remedied(str(answer.json().get('message') or answer.text))}")
    raise AssertionError


@contextlib.contextmanager
def _guarded(engine: Engine, stop_s: int, keep: bool) -> Iterator[Callable[[str], None]]:
    """A process that ends the container where this one cannot, since it was killed; in a session of its own."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "workloads.jobs.containers.guard",
        engine.host,
        str(stop_s),
        str(int(keep)),
    ]
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)

    def tell(line: str) -> None:
        assert guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            guard.stdin.write(f"{line}\n".encode())
            guard.stdin.flush()

    try:
        yield tell
    finally:
        guard.communicate()


def end(made: Created, stop_s: int, keep: bool) -> None:
    """Stop it and remove it, with the nameless volumes that were made for it. Says what fails."""
    stop(made, stop_s)
    if keep:
        log_message(f"the container is kept: {made.id[:12]}")
        return
    with _said(made):
        made.engine.api.remove_container(made.id, v=True, force=True)


def stop(made: Created, stop_s: int) -> None:
    """With SIGTERM, and with SIGKILL after `stop_s`; nothing happens where it has ended. Says what fails."""
    with _said(made):
        made.engine.api.stop(made.id, timeout=stop_s)


@contextlib.contextmanager
def _said(made: Created) -> Iterator[None]:
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.NotFound:  # somebody else was faster
        pass
    except (docker.errors.DockerException, requests.RequestException) as error:
        log_message(f"container {made.id[:12]} is left behind: {reason(error)}; remove it by hand")


def attach(made: Created) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Pieces of stdout and stderr as they come. Raises EngineError: Podman prepares the start of its container here."""
    with _starting(made):
        chunks: Iterator[tuple[bytes | None, bytes | None]] = made.engine.api.attach(
            made.id, stdout=True, stderr=True, stream=True, logs=True, demux=True
        )
    return chunks


def start(made: Created) -> int | None:
    """The pid of its first process in the engine's namespace, None where that has already ended. Raises EngineError."""
    with _starting(made):
        made.engine.api.start(made.id)
    return int(_state(made).get("Pid") or 0) or None


@contextlib.contextmanager
def _starting(made: Created) -> Iterator[None]:
    try:
        with speaking(f"{made.image} does not start"):
            yield
    except EngineError as error:
        raise EngineError(f"{error}; {what_is_there(made.engine)}") from error


def wait(made: Created) -> int:
    """Its exit code. Raises EngineError where it, or the engine, is gone."""
    with speaking(f"container {made.id[:12]} is lost"):
        code = int(made.engine.api.wait(made.id)["StatusCode"])
    if _state(made).get("OOMKilled"):
        log_message("the container ran out of memory and was killed")
    return code


def is_running(made: Created) -> bool:
    """Raises EngineError."""
    return bool(_state(made).get("Running"))


def _state(made: Created) -> dict[str, Any]:
    with speaking(f"container {made.id[:12]} is lost"):
        return dict(made.engine.api.inspect_container(made.id)["State"])


def started_at(made: Created) -> float:
    """In Unix seconds, by the engine's clock. Raises EngineError."""
    return datetime.fromisoformat(str(_state(made)["StartedAt"])).timestamp()
