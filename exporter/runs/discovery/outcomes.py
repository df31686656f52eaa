"""Outcomes of discovered runs, from the container engine, systemd and Kubernetes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import aiohttp

from exporter.contract.run import Outcome
from exporter.model import boottime
from exporter.processes.cgroup_paths import CgroupOwner
from exporter.runs.discovery.pods import PodDirectory

WAIT_S = 5.0
"""Longest wait for an outcome; the end of the run is the exit of its last process nevertheless."""
_ENGINES = ("/run/docker.sock", "/run/podman/podman.sock")
_ROOTLESS = "user/*/podman/podman.sock"
_EXIT_S = 2.0
"""Wait for a response about an exit; then the container may have ended just before the request."""
_STEP_S = 0.2
_SIGNALS = (130, 143)
"""Exit codes after SIGINT and SIGTERM."""


def engine_sockets(environment: Mapping[str, str] = os.environ, run: Path = Path("/run")) -> list[Path]:
    """Return the API sockets of Docker and Podman on this node."""
    named = [environment.get(name, "").removeprefix("unix://") for name in ("DOCKER_HOST", "CONTAINER_HOST")]
    paths = [*map(Path, filter(None, [*named, *_ENGINES])), *run.glob(_ROOTLESS)]
    return [path for path in dict.fromkeys(paths) if path.is_socket()]


class ContainerExits:
    """Exit codes of containers: a request of the engine's API waits for each, also for one that is then removed."""

    def __init__(self, sockets: Sequence[Path] | None = None) -> None:
        self._sockets = sockets
        self._waiting: dict[str, asyncio.Task[int | None]] = {}

    def watch(self, containers: Collection[str]) -> None:
        """Wait for the exits of these containers, by id, and of no others."""
        for container in self._waiting.keys() - containers:
            self._waiting.pop(container).cancel()
        for container in containers - self._waiting.keys():
            self._waiting[container] = asyncio.ensure_future(self._wait(container))

    async def exit_code(self, container: str) -> int | None:
        """Return the exit code of a container that has just ended; None if no engine has it."""
        task = self._waiting.get(container)
        if task is None:
            return None
        await asyncio.wait({task}, timeout=_EXIT_S)
        return task.result() if task.done() and not task.cancelled() else await self._wait(container)

    async def _wait(self, container: str) -> int | None:
        for socket in engine_sockets() if self._sockets is None else self._sockets:
            connector = aiohttp.UnixConnector(str(socket))
            async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session:
                with suppress(aiohttp.ClientError, OSError, ValueError, KeyError, TypeError):
                    return await _wait_for_exit(session, f"http://localhost/containers/{container}")
        return None

    def close(self) -> None:
        self.watch(())


async def _wait_for_exit(session: aiohttp.ClientSession, url: str) -> int | None:
    """Return the container's exit code once it has one. Raises ClientError and KeyError if this engine lacks it.

    Of the conditions for which engines wait, Podman has the exit code of a removed container with `next-exit` only.
    """
    async with session.get(f"{url}/json", raise_for_status=True) as response:
        state = (await response.json())["State"]
    if not state["Running"]:
        return int(state["ExitCode"])
    async with session.post(f"{url}/wait", params={"condition": "next-exit"}, raise_for_status=True) as response:
        exited = await response.json()
    return None if exited.get("Error") else int(exited["StatusCode"])


async def unit_outcome(unit: str, systemctl: str = "systemctl") -> Outcome | None:
    """Return the result of a unit that has just stopped; None if it runs again, or systemd does not know it."""
    state: Mapping[str, str] = {}
    while state.get("ActiveState") not in ("inactive", "failed") and state.get("SubState") != "auto-restart":
        if state.get("ActiveState") in ("active", "activating", "reloading"):
            return None
        await asyncio.sleep(_STEP_S if state else 0.0)  # deactivating
        state = await _show(unit, systemctl)
        if state.get("LoadState") != "loaded":
            return None
    return "ok" if state.get("Result") == "success" else "failed"


async def _show(unit: str, systemctl: str) -> Mapping[str, str]:
    """Return the unit's state; empty without systemd."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(systemctl, "show", "--property=LoadState,ActiveState,SubState,Result", "--", unit),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    lines = (line.partition("=") for line in output.decode(errors="replace").splitlines())
    return {name: value for name, _, value in lines}


class Outcomes:
    """Outcomes of runs whose last process has ended. `pods`: those of Kubernetes."""

    def __init__(self, pods: PodDirectory | None = None, containers: ContainerExits | None = None) -> None:
        self._pods = pods
        self._containers = containers or ContainerExits()

    def watch(self, owners: Collection[CgroupOwner]) -> None:
        """Prepare for the ends of these owners, and of no others."""
        self._containers.watch({owner.id for owner in owners if owner.kind == "container"})

    async def find(self, owner: CgroupOwner) -> Outcome:
        """Return the outcome within WAIT_S, `unknown` if none is reported by then."""
        found: Outcome | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                if owner.kind == "container":
                    found = _of_exit_code(await self._containers.exit_code(owner.id))
                elif owner.kind == "service":
                    found = await unit_outcome(owner.id)
                elif owner.kind == "kubernetes" and self._pods:
                    found = await self._pods.outcome(owner.id, boottime() + WAIT_S - 1.0)
        return found or "unknown"

    def close(self) -> None:
        self._containers.close()


def _of_exit_code(code: int | None) -> Outcome | None:
    if code is None:
        return None
    return "ok" if code == 0 else "interrupted" if code in _SIGNALS else "failed"
