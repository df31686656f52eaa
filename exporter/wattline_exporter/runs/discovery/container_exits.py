"""Exit codes of containers, from Docker, Podman, containerd and CRI-O."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from wattline.command_line import install
from wattline.contract.api import Outcome
from wattline_exporter.sensors.kubernetes.pods import SIGTERM_CODES, Pod
from wattline_exporter.sensors.readings import SourceError

if TYPE_CHECKING:
    from wattline_exporter.sensors.kubernetes.container_runtime import ContainerRuntime

_ENGINES = ("docker.sock", "podman/podman.sock")
_ROOTLESS = "user/*/podman/podman.sock"
_RUNTIMES = ("containerd/containerd.sock", "k3s/containerd/containerd.sock", "crio/crio.sock")
_EXIT_S = 2.0
"""Wait for a response about an exit; then the container may have ended just before the request."""
RUN = Path("/run")


def engine_sockets(environment: Mapping[str, str] = os.environ, run: Path = RUN) -> list[Path]:
    """Return the API sockets of Docker and Podman on this node."""
    return _sockets(
        [environment.get(name, "") for name in ("DOCKER_HOST", "CONTAINER_HOST")],
        run,
        _ENGINES,
        _ROOTLESS,
    )


def runtime_sockets(environment: Mapping[str, str] = os.environ, run: Path = RUN) -> list[Path]:
    """Return the sockets of containerd and CRI-O on this node; the environment names one as for
    crictl.
    """
    return _sockets([environment.get("CONTAINER_RUNTIME_ENDPOINT", "")], run, _RUNTIMES)


def _sockets(
    named: Sequence[str], run: Path, names: Sequence[str], pattern: str = ""
) -> list[Path]:
    paths = [Path(name.removeprefix("unix://")) for name in named if name]
    paths += [run / name for name in names]
    found = dict.fromkeys([*paths, *(run.glob(pattern) if pattern else ())])
    return [path for path in found if _is_socket(path)]


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:  # in a folder of root
        return False


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """Exit code of a container, and its Unix time if that is known.

    `is_oom`: it was killed since it exceeded its memory.
    """

    code: int
    is_oom: bool = False
    ended_at: float | None = None

    @property
    def outcome(self) -> Outcome:
        if self.code == 0:
            return "ok"
        return "interrupted" if self.code in SIGTERM_CODES else "failed"

    @property
    def note(self) -> str:
        """Return a text about a failure, empty for none."""
        return Pod.failure("", self.code, is_oom=self.is_oom) if self.outcome == "failed" else ""


class ContainerRuntimes:
    """Clients of the sockets of containerd and CRI-O that exist now."""

    def __init__(self, sockets: Callable[[], Sequence[Path]] = runtime_sockets) -> None:
        self._sockets = sockets
        self._clients: dict[Path, ContainerRuntime] = {}
        self.failure: str | None = None
        """Cause and remedy of the latest read, empty if it succeeded; None before the first."""

    def clients(self) -> list[ContainerRuntime]:
        sockets = self._sockets()
        if not sockets:
            return []
        try:
            from wattline_exporter.sensors.kubernetes.container_runtime import ContainerRuntime
        except ModuleNotFoundError as error:
            self.failure = f"{error.name} is not installed; {install('kubernetes')}"
            return []
        for socket in sockets:
            self._clients.setdefault(socket, ContainerRuntime(socket))
        return [self._clients[socket] for socket in sockets]

    def find(self, *, pod: str = "", container: str = "") -> Pod | None:
        """Return the containers of a pod by its UID, or a container by its id; None if no runtime
        has it. Blocks.
        """
        for runtime in self.clients():
            try:
                found = runtime.pod(pod) if pod else runtime.container(container)
            except SourceError as error:
                self.failure = str(error)
                continue
            self.failure = ""
            if found:
                return found
        return None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


class ContainerExits:
    """Exits of containers: a request of the engine's API waits for each, also for one that is then
    removed.
    """

    def __init__(
        self, sockets: Sequence[Path] | None = None, runtimes: ContainerRuntimes | None = None
    ) -> None:
        self._sockets = sockets
        self._runtimes = runtimes or ContainerRuntimes()
        self._waiting: dict[str, asyncio.Task[ContainerExit | None]] = {}

    def watch(self, containers: Collection[str]) -> None:
        """Wait for the exits of these containers, by id, and of no others."""
        for container in self._waiting.keys() - containers:
            self._waiting.pop(container).cancel()
        for container in containers - self._waiting.keys():
            self._waiting[container] = asyncio.ensure_future(self._wait(container))

    async def find(self, container: str) -> ContainerExit | None:
        """Return the exit of a container that has just ended; None if no engine has it."""
        task = self._waiting.get(container)
        if task is None:
            return None
        await asyncio.wait({task}, timeout=_EXIT_S)
        exited = (
            task.result() if task.done() and not task.cancelled() else await self._wait(container)
        )
        if exited and exited.code == 0:
            return exited
        known = await asyncio.to_thread(
            self._runtimes.find, container=container
        )  # CRI-O, and the reason
        for name, code in known.containers.items() if known else ():
            if code is not None:
                assert known
                return ContainerExit(code, known.is_oom(name), known.ended_at.get(name))
        return exited

    async def _wait(self, container: str) -> ContainerExit | None:
        for socket in engine_sockets() if self._sockets is None else self._sockets:
            connector = aiohttp.UnixConnector(str(socket))
            async with aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout()
            ) as session:
                with suppress(aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
                    return await _wait_for_exit(session, f"http://localhost/containers/{container}")
        for runtime in await asyncio.to_thread(self._runtimes.clients):
            if exited := await runtime.wait(container):
                code, ended_at = exited
                return ContainerExit(code, ended_at=ended_at)
        return None

    def close(self) -> None:
        self.watch(())


async def _wait_for_exit(session: aiohttp.ClientSession, url: str) -> ContainerExit | None:
    """Return the container's exit once it has one. Raises ClientError and KeyError if this engine
    lacks it.

    Of the conditions for which engines wait, Podman has the exit code of a removed container with
    `next-exit` only.
    """
    state = await _state(session, url)
    if not state.running:
        return state.exit()
    async with session.post(
        f"{url}/wait", params={"condition": "next-exit"}, raise_for_status=True
    ) as response:
        exited = await response.json()
    if exited.get("Error"):
        return None
    with suppress(aiohttp.ClientError, ValueError, KeyError):  # it was removed
        state = await _state(session, url)
        if not state.running:
            return state.exit()
    return ContainerExit(int(exited["StatusCode"]), ended_at=time.time())


class _State(BaseModel):
    """State of a container of Docker or Podman."""

    model_config = ConfigDict(alias_generator=to_pascal)

    running: bool
    exit_code: int
    oom_killed: bool = Field(default=False, alias="OOMKilled")
    finished_at: AwareDatetime | None = None

    def exit(self) -> ContainerExit:
        ended_at = self.finished_at.timestamp() if self.finished_at else None
        return ContainerExit(self.exit_code, self.oom_killed, ended_at)


async def _state(session: aiohttp.ClientSession, url: str) -> _State:
    async with session.get(f"{url}/json", raise_for_status=True) as response:
        return _State.model_validate((await response.json())["State"])


def describe_sockets(
    engines: Sequence[Path], runtimes: Sequence[Path]
) -> Iterator[tuple[bool, str]]:
    """Yield whether a socket can be used, and its path or the cause and the remedy, for each
    socket.
    """
    for socket in (*engines, *runtimes):
        if os.access(socket, os.R_OK | os.W_OK):
            yield True, str(socket)
        else:
            yield (
                False,
                (
                    f"cannot open {socket}: permission denied; run the exporter as root, or in its "
                    "group"
                ),
            )
