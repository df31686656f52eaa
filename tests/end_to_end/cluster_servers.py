"""Prometheus and VictoriaMetrics processes that can be killed and restarted on their data."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import requests

from tests import servers
from wattline.contract import metrics as m
from wattline_analyzer.core.sources.prometheus import PrometheusSource

READY_WITHIN_S = 60.0


@dataclass
class Server:
    name: str
    url: str
    command: list[str]
    log_file: Path
    ready_path: str
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server without waiting; see `until_ready`."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=subprocess.STDOUT)

    def until_ready(self) -> None:
        give_up_s = time.monotonic() + READY_WITHIN_S
        while True:
            with suppress(requests.ConnectionError):
                if requests.get(f"{self.url}{self.ready_path}", timeout=10).ok:
                    return
            assert self._process is not None
            assert self._process.poll() is None, f"{self.name} ended: {self.log_file.read_text()}"
            assert time.monotonic() < give_up_s, (
                f"{self.name} is not ready: {self.log_file.read_text()}"
            )
            time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server with SIGKILL if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def until_scraped(self, instances: set[str], after_s: float, within_s: float) -> None:
        """Wait until every instance was scraped after the given Unix time."""
        give_up_s = time.monotonic() + within_s
        source = PrometheusSource(self.url)
        try:
            while missing := instances - self._scraped(source, after_s):
                assert time.monotonic() < give_up_s, (
                    f"{self.name} has not scraped {sorted(missing)}"
                )
                time.sleep(0.5)
        finally:
            source.close()

    def _scraped(self, source: PrometheusSource, after_s: float) -> set[str]:
        return set(source.fetch([m.BUILD_INFO], {}, after_s, time.time() + 1).distinct("instance"))


def prometheus(folder: Path, targets: Sequence[str], scrape_interval: str) -> Server:
    binary, address = servers.require("prometheus"), f"127.0.0.1:{servers.free_port()}"
    command = [
        binary,
        f"--config.file={servers.scrape_config(folder, targets, scrape_interval)}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--log.level=warn",
    ]
    return Server("Prometheus", f"http://{address}", command, folder / "prometheus.log", "/-/ready")


def victoria_metrics(folder: Path, targets: Sequence[str], scrape_interval: str) -> Server:
    binary, address = servers.require("victoria-metrics"), f"127.0.0.1:{servers.free_port()}"
    command = [
        binary,
        f"-promscrape.config={servers.scrape_config(folder, targets, scrape_interval)}",
        f"-storageDataPath={folder / 'data'}",
        f"-httpListenAddr={address}",
        "-loggerLevel=WARN",
    ]
    return Server(
        "VictoriaMetrics", f"http://{address}", command, folder / "victoria-metrics.log", "/health"
    )
