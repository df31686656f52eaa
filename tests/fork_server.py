"""Python programs as forks of a process that has imported their modules, to start faster.

Each is a separate process with its arguments, environment and folder, from `__main__` to its exit
code. An environment that only a new process obeys, such as LD_PRELOAD, starts a new process. Each
pair of LD_LIBRARY_PATH and PYTHONPATH has its own to fork from.
"""

from __future__ import annotations

import atexit
import gc
import hashlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
_OF_NEW_PROCESSES = ("LD_", "PYTHON", "MALLOC_", "OMP_", "GLIBC_")
_PATHS = ("LD_LIBRARY_PATH", "PYTHONPATH")
_READY_S = 60.0
_IN_USE = 98
"""Exit code if another worker has already started the same process."""


class ForkServer:
    """Process that imports `modules` once and forks programs. `flags` are interpreter options.

    All workers of pytest-xdist share it; it ends with their parent. Without `forks` all programs
    are new processes.
    """

    def __init__(self, *modules: str, flags: Sequence[str] = (), forks: bool = True) -> None:
        self._forks = forks
        self._flags = flags
        self._modules = modules
        self._owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        self._started: set[str] = set()
        self._starting = threading.Lock()

    def run(
        self,
        program: Sequence[str],
        env: Mapping[str, str],
        *,
        cwd: Path | None = None,
        timeout_s: float = 180.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program like `subprocess.run`; `program` begins with -m MODULE, -c CODE or the path
        of a script.
        """
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self.start(program, env, out, err, cwd=cwd)
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            return subprocess.CompletedProcess(list(program), code, _text(out), _text(err))

    def start(
        self,
        program: Sequence[str],
        env: Mapping[str, str],
        out: IO[bytes],
        err: IO[bytes],
        *,
        cwd: Path | None = None,
    ) -> subprocess.Popen[bytes] | ForkedProcess:
        """Start the program in a new session, without input."""
        if not (self._forks and can_fork(env)):
            command = [sys.executable, *self._flags, *program]
            return subprocess.Popen(
                command,
                env=env,
                cwd=cwd,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        connection = self._connect({name: env[name] for name in _PATHS if name in env})
        with Path(os.devnull).open("rb") as nothing:
            socket.send_fds(connection, [b"."], [nothing.fileno(), out.fileno(), err.fileno()])
        request = {"program": list(program), "env": dict(env), "cwd": str(cwd or Path.cwd())}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return ForkedProcess(connection)

    def _connect(self, paths: Mapping[str, str]) -> socket.socket:
        shared = repr((sys.executable, self._flags, self._modules, sorted(paths.items()))).encode()
        address = f"wattline-{self._owner}-{hashlib.sha256(shared).hexdigest()[:16]}"
        connection = socket.socket(socket.AF_UNIX)
        give_up_s = time.monotonic() + _READY_S
        while connection.connect_ex(f"\0{address}"):  # abstract socket: no file is left behind
            with self._starting:
                if address not in self._started:
                    self._start(address, paths)
            assert time.monotonic() < give_up_s, "the process to fork from is not ready"
            time.sleep(0.02)
        return connection

    def _start(self, address: str, paths: Mapping[str, str]) -> None:
        command = [
            sys.executable,
            *self._flags,
            "-m",
            "tests.fork_server",
            address,
            str(self._owner),
            *self._modules,
        ]
        env = {**os.environ, **paths}
        started = subprocess.run(
            command,
            env=env,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )
        assert started.returncode in {0, _IN_USE}, "the process to fork from has ended"
        self._started.add(address)


class ForkedProcess:
    """Subset of subprocess.Popen for a process that is another's child."""

    def __init__(self, connection: socket.socket) -> None:
        self._answers = connection.makefile("rb")
        self._connection = connection
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._connection.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def can_fork(env: Mapping[str, str]) -> bool:
    """Return True if the environment has no variable that only a new process obeys."""
    changed = {name for name, value in env.items() if os.environ.get(name) != value} - {*_PATHS}
    return not any(name.startswith(_OF_NEW_PROCESSES) for name in changed)


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode())


def _next_program(listening: socket.socket, owner: int) -> list[str]:
    """Serve requests; return in each fork that becomes a program."""
    waiting: dict[int, tuple[int, socket.socket]] = {}
    while True:
        watched: list[Any] = [listening, owner, *waiting]
        ready, _, _ = select.select(watched, [], [])
        if owner in ready:
            os._exit(0)
        for ended in waiting.keys() & set(ready):
            _report_end(ended, *waiting.pop(ended))
        if listening not in ready:
            continue
        connection, _ = listening.accept()
        _, descriptors, *_ = socket.recv_fds(connection, 1, 3)
        with connection.makefile("rb") as asking:
            line = asking.readline()
        if not line:  # the client has ended
            continue
        pid = os.fork()
        if pid == 0:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        waiting[os.pidfd_open(pid)] = pid, connection
        with suppress(BrokenPipeError):
            connection.sendall(b"%d\n" % pid)
    for opened in (listening, connection, *(other for _, other in waiting.values())):
        opened.close()
    for each in (owner, *waiting):
        os.close(each)
    return _prepare(json.loads(line), descriptors)


def _report_end(ended: int, pid: int, connection: socket.socket) -> None:
    os.close(ended)
    _, status = os.waitpid(pid, 0)
    with suppress(BrokenPipeError), connection:  # the client may no longer wait
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _prepare(request: dict[str, Any], descriptors: Sequence[int]) -> list[str]:
    """Set up session, standard streams, folder and environment; return the program."""
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    return list(request["program"])


def _become(program: list[str]) -> None:
    first, *rest = program
    if first == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = rest  # the first argument becomes the module's file
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[0] = ""
        sys.argv = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path[0] = str(Path(first).parent)
        sys.argv = program
        runpy.run_path(first, run_name="__main__")


def _exit_without_cleanup(code: int) -> None:
    """End as the interpreter does, but do not destroy the modules: each fork would copy all their
    pages.

    Return if the output cannot be written; the interpreter then reports it.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # the interpreter waits with it for threads
    atexit._run_exitfuncs()
    gc.collect()  # warns of files that are still open
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def _main(address: str, owner: int, modules: Sequence[str]) -> None:
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(f"\0{address}")
    except OSError:
        sys.exit(_IN_USE)
    for module in modules:
        __import__(module)
    gc.collect()
    gc.freeze()  # else each fork copies the pages of all these objects in its collections
    owner_end = os.pidfd_open(owner)
    listening.listen(64)
    if os.fork():  # the client waits for this process only
        os._exit(0)
    program = _next_program(listening, owner_end)
    try:
        _become(program)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    else:
        code = 0
    _exit_without_cleanup(code)
    sys.exit(code)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
