"""One MPS control daemon of NVIDIA's: start it, ask it, end it and all that it has started.

Of the standard library alone, as the watcher beside it is to be small.
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

PROGRAM = "nvidia-cuda-mps-control"
PIPE_DIRECTORY, LOG_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
_MARK = "WATTLINE_MPS"
"""Set for the daemon alone and inherited by its servers: by it they are found, whatever happened to them."""
_CALL_TIMEOUT_S = 20.0
_ANSWERS_WITHIN_S = 20.0
_KILLED_WITHIN_S = 10.0
_POLL_S = 0.05
_POLITE_S = 2  # `quit -t`: for so long the servers wait for clients that are still there


class MpsError(Exception):
    """One line: the cause and the next step."""


@dataclass(frozen=True, slots=True)
class MpsDaemon:
    environ: Mapping[str, str]
    """With the folders of daemon and clients."""
    mark: str

    @property
    def pipe_folder(self) -> Path:
        return Path(self.environ[PIPE_DIRECTORY])

    @property
    def log_folder(self) -> Path:
        return Path(self.environ[LOG_DIRECTORY])

    def start(self) -> None:
        """Return once it answers; raises MpsError."""
        with tempfile.TemporaryFile() as output:  # a pipe would stay open for as long as the daemon lives
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
                raise _not_run(error) from error
            output.seek(0)
            said = _last_line(output.read().decode(errors="replace"))
        if code != 0:
            raise MpsError(f"MPS does not start: {said or f'{PROGRAM} -d exits with {code}'}")
        self._await_answer(said)

    def _await_answer(self, said: str) -> None:
        give_up_s = time.monotonic() + _ANSWERS_WITHIN_S
        while True:
            try:
                self.ask("get_server_list")
            except MpsError as error:
                if time.monotonic() > give_up_s or not self.processes():
                    reason = self.last_log_line("control.log") or said or str(error)
                    raise MpsError(f"MPS does not start: {reason}") from error
                time.sleep(_POLL_S)
            else:
                return

    def ask(self, command: str, timeout_s: float = _CALL_TIMEOUT_S) -> str:
        """What the control program prints; raises MpsError."""
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
            raise _not_run(error) from error
        if done.returncode != 0:
            said = _last_line(done.stdout + done.stderr) or f"exit code {done.returncode}"
            raise MpsError(f"the MPS daemon does not answer {command!r}: {said}")
        return done.stdout

    def clients(self) -> set[int]:
        """The pids of all its servers' clients; raises MpsError."""
        servers = _pids(self.ask("get_server_list"))
        return {pid for server in servers for pid in _pids(self.ask(f"get_client_list {server}"))}

    def stop(self, within_s: float) -> list[int]:
        """End it, by force after `within_s`; the pids of what cannot be ended. The pipe folder goes, the logs stay."""
        for command in (f"quit -t {_POLITE_S}", "quit"):  # older versions know no time-out
            if self.processes():
                with contextlib.suppress(MpsError):
                    self.ask(command, within_s / 2)
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
        """The daemon and its servers, those alone; a zombie has no environment any more."""
        wanted = f"{_MARK}={self.mark}".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdecimal():
                with contextlib.suppress(OSError):
                    if wanted in (folder / "environ").read_bytes().split(b"\0"):
                        found.append(int(folder.name))
        return sorted(found)

    def last_log_line(self, name: str) -> str:
        try:
            return _last_line((self.log_folder / name).read_text(errors="replace"))
        except OSError:
            return ""


def _pids(answer: str) -> list[int]:
    """One a line; whatever else a version prints is no pid."""
    return [int(line) for line in map(str.strip, answer.splitlines()) if line.isdecimal()]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def require_mps(environ: Mapping[str, str]) -> None:
    """Raises MpsError where MPS is not installed."""
    if shutil.which(PROGRAM, path=environ.get("PATH")) is None:
        raise _not_run(FileNotFoundError())


def _not_run(error: OSError | subprocess.TimeoutExpired) -> MpsError:
    if isinstance(error, FileNotFoundError):
        return MpsError(
            f"MPS is not installed here: there is no {PROGRAM} on PATH; it comes with NVIDIA's driver (on Debian and "
            "Ubuntu in nvidia-compute-utils), or do without: mps: false"
        )
    if isinstance(error, subprocess.TimeoutExpired):
        return MpsError(f"{PROGRAM} does not return within {error.timeout:g} s; is the driver well? try nvidia-smi")
    return MpsError(f"{PROGRAM} cannot be executed: {error.strerror}; ask for the right to, or do without: mps: false")
