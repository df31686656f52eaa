"""Real Prometheus and VictoriaMetrics on loopback, the first found on PATH.

To try other versions, unpack the packages prometheus, promtool, victoria-metrics and libzstd1 of a
newer distribution (`dpkg -x`), put a script for each program into a folder that sets
LD_LIBRARY_PATH to their libraries, and run the tests with `PATH=/that/folder:$PATH`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

_READY_S = 60.0


def require(binary: str, packages: str = "prometheus victoria-metrics") -> str:
    """Return the path of the program; skip the test without it, or fail if CI=true."""
    result = shutil.which(binary)
    if result:
        return result
    reason = f"{binary} is not installed: apt-get install {packages}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def prometheus(
    folder: Path,
    targets: Sequence[str],
    scrape_interval: str = "1s",
    flags: Sequence[str] = (),
    job: Mapping[str, object] | None = None,
    *,
    config: str = "",
    port: int | None = None,
) -> Iterator[str]:
    """Start a Prometheus that scrapes `targets` (host:port) and yield its base URL once it is
    ready.

    `job` has further keys of the scrape configuration, such as `tls_config`; `config` extends its
    file.
    """
    binary, port = require("prometheus"), port or free_port()
    file = scrape_config(folder, targets, scrape_interval, job)
    file.write_text(file.read_text() + config)
    arguments = [
        binary,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *flags,
    ]
    with _running(arguments, folder / "prometheus.log", f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def victoria_metrics(
    folder: Path,
    targets: Sequence[str],
    scrape_interval: str = "1s",
    flags: Sequence[str] = (),
    *,
    port: int | None = None,
) -> Iterator[str]:
    """Start a VictoriaMetrics that scrapes `targets` (host:port) and yield its base URL once it is
    ready.
    """
    binary, port = require("victoria-metrics"), port or free_port()
    arguments = [
        binary,
        f"-promscrape.config={scrape_config(folder, targets, scrape_interval)}",
        f"-storageDataPath={folder / 'victoria-metrics'}",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-loggerLevel=WARN",
        *flags,
    ]
    prefix = next(
        (flag.partition("=")[2] for flag in flags if flag.startswith("-http.pathPrefix=")), ""
    )
    with _running(
        arguments, folder / "victoria-metrics.log", f"http://127.0.0.1:{port}{prefix}/health"
    ):
        yield f"http://127.0.0.1:{port}"


def query(server: str, selector: str) -> list[float]:
    """Return the values of an instant query."""
    with urllib.request.urlopen(
        f"{server}/api/v1/query?{urllib.parse.urlencode({'query': selector})}"
    ) as answer:
        return [float(result["value"][1]) for result in json.load(answer)["data"]["result"]]


def backfill_rules(server: str, rules: Path, start_s: float, end_s: float, folder: Path) -> None:
    """Evaluate recording rules over the past with promtool; create blocks in the folder of a
    Prometheus's storage.

    The phase of the evaluations is a hash of the file's name, here without its folder: equal
    wherever the clone is.
    """
    call = [require("promtool"), "tsdb", "create-blocks-from", "rules", f"--url={server}"]
    call += [f"--start={start_s:.0f}", f"--end={end_s:.0f}", f"--output-dir={folder}", rules.name]
    subprocess.run(call, cwd=rules.parent, check=True, capture_output=True, timeout=300)


def scrape_config(
    folder: Path,
    targets: Sequence[str],
    scrape_interval: str,
    job: Mapping[str, object] | None = None,
) -> Path:
    path = folder / "scrape.yml"
    more = "".join(f"    {key}: {json.dumps(value)}\n" for key, value in (job or {}).items())
    listed = ", ".join(f"'{target}'" for target in targets)
    path.write_text(
        f"global:\n  scrape_interval: {scrape_interval}\n  scrape_timeout: {scrape_interval}\n"
        "scrape_configs:\n  - job_name: wattline\n    static_configs:\n      - targets: "
        f"[{listed}]\n{more}"
    )
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _running(arguments: Sequence[str], log: Path, ready_url: str) -> Iterator[None]:
    with (
        log.open("wb") as output,
        subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT) as process,
    ):
        try:
            _await(process, log, ready_url)
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _await(process: subprocess.Popen[bytes], log: Path, ready_url: str) -> None:
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            pytest.fail(f"{process.args!r} ended at once:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(ready_url, timeout=2):
                return
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 401:  # it is up and requires authentication
                return
        except OSError:
            pass
        time.sleep(0.1)
    pytest.fail(f"{ready_url} was not ready within {_READY_S:.0f} s:\n{log.read_text()}")
