"""Control daemon of NVIDIA MPS: start, commands, stop.

The module imports only the standard library, to keep its watchdog process small.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wattline_workloads.runner.watchdog import WatchedParent

PROGRAM = "nvidia-cuda-mps-control"
PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
LOG_DIRECTORY = "CUDA_MPS_LOG_DIRECTORY"
_MARK = "WATTLINE_MPS"
"""Variable of the daemon's environment, inherited by its servers, by which their processes are
found.
"""
_CALL_TIMEOUT_S = 20.0
_RESPONDS_WITHIN_S = 20.0
_KILLED_WITHIN_S = 10.0
_POLL_S = 0.05
_STOP_ABANDONED_WITHIN_S = 5.0
_POLITE_S = 2  # `quit -t`: time for which the servers wait for their clients


class MpsError(Exception):
    """Error with a one-line message: the cause and the remedy."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    """Control daemon with its servers."""

    environ: Mapping[str, str]
    """Environment with the folders of daemon and clients."""
    mark: str

    @property
    def pipe_folder(self) -> Path:
        return Path(self.environ[PIPE_DIRECTORY])

    @property
    def log_folder(self) -> Path:
        return Path(self.environ[LOG_DIRECTORY])

    def start(self) -> None:
        """Start the daemon and wait until it responds. Raises MpsError."""
        with tempfile.TemporaryFile() as output:  # a pipe would stay open until the daemon ends
            try:
                code = subprocess.run(
                    [PROGRAM, "-d"],
                    env={**self.environ, _MARK: self.mark},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    timeout=_CALL_TIMEOUT_S,
                    check=False,
                ).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                raise _execution_error(error) from error
            output.seek(0)
            message = _last_line(output.read().decode(errors="replace"))
        if code != 0:
            raise MpsError(f"cannot start MPS: {message or f'{PROGRAM} -d exits with {code}'}")
        self._await_response(message)

    def _await_response(self, message: str) -> None:
        give_up_s = time.monotonic() + _RESPONDS_WITHIN_S
        while True:
            try:
                self.send_command("get_server_list")
            except MpsError as error:
                if time.monotonic() > give_up_s or not self.processes():
                    reason = self.last_log_line("control.log") or message or str(error)
                    raise MpsError(f"cannot start MPS: {reason}") from error
                time.sleep(_POLL_S)
            else:
                return

    def send_command(self, command: str, timeout_s: float = _CALL_TIMEOUT_S) -> str:
        """Send a command; return the output of the control program. Raises MpsError."""
        try:
            done = subprocess.run(
                [PROGRAM],
                env=dict(self.environ),
                input=f"{command}\n",
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise _execution_error(error) from error
        if done.returncode != 0:
            message = _last_line(done.stdout + done.stderr) or f"exit code {done.returncode}"
            raise MpsError(f"the MPS daemon rejected {command!r}: {message}")
        return done.stdout

    def clients(self) -> set[int]:
        """Return the pids of the clients of all servers. Raises MpsError."""
        servers = _pids(self.send_command("get_server_list"))
        return {
            pid
            for server in servers
            for pid in _pids(self.send_command(f"get_client_list {server}"))
        }

    def stop(self, within_s: float) -> list[int]:
        """Stop the daemon, by SIGKILL after `within_s`; return the remaining pids. Its logs are
        kept.
        """
        for command in (f"quit -t {_POLITE_S}", "quit"):  # older versions have no timeout option
            if self.processes():
                with contextlib.suppress(MpsError):
                    self.send_command(command, within_s / 2)
            self._await_end(within_s / 2)
        for pid in self.processes():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self._await_end(_KILLED_WITHIN_S)
        shutil.rmtree(self.pipe_folder, ignore_errors=True)
        return self.processes()

    def _await_end(self, within_s: float) -> None:
        give_up_s = time.monotonic() + within_s
        while self.processes() and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)

    def processes(self) -> list[int]:
        """Return the pids of the daemon and its servers, without zombies."""
        wanted = f"{_MARK}={self.mark}".encode()
        pids = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in (folder / "environ").read_bytes().split(b"\0"):
                        pids.append(int(folder.name))
        return sorted(pids)

    def last_log_line(self, name: str) -> str:
        try:
            return _last_line((self.log_folder / name).read_text(errors="replace"))
        except OSError:
            return ""


def stop_abandoned_daemon(parent: WatchedParent, mark: str) -> int:
    """Stop the daemon of this environment if its runner was killed."""
    if parent.await_end() is None:
        return 0
    return 1 if MpsDaemon(dict(os.environ), mark).stop(_STOP_ABANDONED_WITHIN_S) else 0


def _pids(output: str) -> list[int]:
    """Return the pids, one per line; other output is ignored."""
    return [int(line) for line in map(str.strip, output.splitlines()) if line.isdecimal()]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def require_mps(environ: Mapping[str, str]) -> None:
    """Raise MpsError if MPS is not installed."""
    if shutil.which(PROGRAM, path=environ.get("PATH")) is None:
        raise _execution_error(FileNotFoundError())


def _execution_error(error: OSError | subprocess.TimeoutExpired) -> MpsError:
    if isinstance(error, FileNotFoundError):
        return MpsError(
            f"cannot start MPS: {PROGRAM} is not on PATH; install NVIDIA's driver (on Debian and "
            "Ubuntu "
            "nvidia-compute-utils), or set mps: false"
        )
    if isinstance(error, subprocess.TimeoutExpired):
        return MpsError(
            f"{PROGRAM} did not return within {error.timeout:g} s; check the driver with nvidia-smi"
        )
    return MpsError(
        f"cannot execute {PROGRAM}: {error.strerror}; get the permission, or set mps: false"
    )
