"""Demonstration of Wattline: a short run, measured, stored and reported.

It imports the standard library only, so that its first line is printed before anything is
installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "demo"
BIN = ROOT / ".venv" / "bin"
SIMULATED = "2xH200"
IDLE_S = 15
RUN_S = 30
EXAMPLE_G_PER_KWH = 230


def gpu_names() -> list[str]:
    """Return the names of the GPUs that NVML finds; empty without a driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return []
    except (OSError, AttributeError):
        return []
    count = ctypes.c_uint()
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    names = []
    for index in range(count.value):
        handle = ctypes.c_void_p()
        name = ctypes.create_string_buffer(96)
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            nvml.nvmlDeviceGetName(handle, name, len(name))
            names.append(name.value.decode(errors="replace"))
    nvml.nvmlShutdown()
    return names


def rapl_packages() -> list[str]:
    """Return the RAPL packages whose energy this user may read."""
    packages = []
    for zone in sorted(Path("/sys/class/powercap").glob("intel-rapl:*")):
        try:
            (zone / "energy_uj").read_text()
            name = (zone / "name").read_text().strip()
        except OSError:
            continue
        if name.startswith("package"):
            packages.append(name)
    return packages


def hardware() -> tuple[str, bool]:
    """Return a description of the measured hardware; True if GPUs are simulated, because none is
    readable.
    """
    names = gpu_names()
    packages = rapl_packages()
    real = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)] + [
        f"RAPL {name}" for name in packages
    ]
    if real:
        return "Measuring " + ", ".join(real), False
    return f"SIMULATED {SIMULATED.replace('x', ' x ')}: no GPU on this machine", True


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def exporter(address: str, *, simulated: bool) -> Iterator[None]:
    """Run the daemon during the block, in its own session, so that Ctrl-C does not reach it."""
    options = ["--web.listen-address", address, "--state.path", str(OUT / "state")]
    options += ["--carbon.intensity", str(EXAMPLE_G_PER_KWH)] + (
        ["--simulate", SIMULATED] if simulated else []
    )
    with (OUT / "exporter.log").open("w") as log:
        daemon = subprocess.Popen(
            [BIN / "exporter", "serve", *options], stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_ready(daemon, address)
            yield
        finally:
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()


def wait_until_ready(daemon: subprocess.Popen[bytes], address: str) -> None:
    for _ in range(300):
        if daemon.poll() is not None:
            sys.exit(
                "demo: the exporter did not start: "
                f"{(OUT / 'exporter.log').read_text().strip().splitlines()[-1]}"
            )
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=1).close()
            return
        time.sleep(0.1)
    sys.exit(f"demo: the exporter is not ready after 30 s; see {OUT / 'exporter.log'}")


def say(text: str) -> None:
    print(text, flush=True)


def idle(seconds: int, title: str) -> None:
    say(f"{title} ({seconds} s)")
    time.sleep(seconds)


def step(
    command: list[str], environment: dict[str, str] | None = None, *, hides_hint: bool = False
) -> None:
    """Run a command; if the demo is interrupted, terminate the command and wait for it.

    `hides_hint` leaves out the command that reports the run, whose source ends with the demo.
    """
    stderr = subprocess.PIPE if hides_hint else None
    with subprocess.Popen(
        [str(part) for part in command], env=environment, stderr=stderr, text=True
    ) as process:
        try:
            for line in process.stderr or ():
                print(
                    line.rstrip("\n").partition(": analyzer report ")[0],
                    file=sys.stderr,
                    flush=True,
                )
            code = process.wait()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0:
        sys.exit(
            f"demo: {Path(command[0]).name} failed with exit code {code}; its messages are above, "
            f"logs in {OUT}"
        )


def demo(*, simulated: bool) -> None:
    step(["make", "--silent", "--no-print-directory", "-C", str(ROOT), "venv"])
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    url = f"http://{address}"
    environment = {**os.environ, "WATTLINE_EXPORTER": url, "WATTLINE_SOURCE": url}
    with exporter(address, simulated=simulated):
        idle(IDLE_S, "Measuring idle power before the run")
        say(f"Running matrix multiplications ({RUN_S} s)")
        step(
            [f"{BIN}/workloads", "job", "sgemm", "--duration", str(RUN_S), "--gpus", "all"],
            environment,
            hides_hint=True,
        )
        idle(IDLE_S, "Measuring idle power after the run")
        with urllib.request.urlopen(f"{url}/api/v1/runs", timeout=10) as answer:  # noqa: S310  # our own loopback
            run_id = json.load(answer)[0]["run_id"]
        step(
            [f"{BIN}/analyzer", "report", "--run-id", run_id, "--out", f"{OUT}/report"], environment
        )
    say(
        f"\nCarbon intensity: {EXAMPLE_G_PER_KWH} gCO2eq/kWh, an example value; set your region "
        "with --carbon.region."
    )
    for name in ("report.html", "report.png"):
        say(f"{name}: {OUT / 'report' / name}")
    again = f"{BIN}/analyzer report --run-id {run_id} --source {OUT}/state/history.sqlite"
    say(f"To print the report again from the stored history: {again}")


def main() -> None:
    description, simulated = hardware()
    say(description)
    for sign in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sign, lambda number, _: sys.exit(128 + number))
    try:
        demo(simulated=simulated)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
