"""Isolated node on which Podman runs deploy/docker's compose.yml.

It has separate network, process and mount namespaces. It needs root, Debian's netavark and
aardvark-dns, and podman-compose. Its simulated GPUs are behind a loadable driver library, which a
container gets by a CDI device, as the NVIDIA Container Toolkit provides the real one.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlencode

from tests.daemon import environment
from tests.deploy.machine import REPOSITORY
from tests.fakes import nvml
from tests.fakes.podman import Podman
from tests.polling import eventually
from tests.servers import require
from wattline_exporter import simulation
from wattline_exporter.simulation import Constant, Simulation

DOCKER = REPOSITORY / "deploy" / "docker"
CONTAINER_USER = 65532
EXPORTER = "http://127.0.0.1:9847"
_ASK = (
    "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], "
    "timeout=10).read().decode())"
)
_LOOK = """
import json, sys, urllib.request as r
texts = [open(path).read() for path in json.loads(sys.argv[1])]
print(json.dumps(texts + [r.urlopen(url, timeout=10).read().decode() for url in sys.argv[2:]]))
"""
_BOOT = """
trap '' CHLD
mkdir -p /run/cdi && mount -t tmpfs cdi /run/cdi && printf %s "$1" > /run/cdi/nvidia.json && ip link set lo up
exec sleep infinity
"""
_STORAGE = """\
[storage]
driver = "overlay"
graphroot = "{folder}/store"
runroot = "{folder}/run"
[storage.options]
additionalimagestores = ["{images}"]
"""


class Node:
    """Node that runs while the context is entered."""

    def __init__(self, folder: Path, engine: Podman, power_w: float) -> None:
        self._images = engine.folder / "store"
        self._folder = folder
        self._power_w = power_w
        self._composed: tuple[str, ...] = ()
        self.files = folder / "deploy" / "docker"
        self.token = self.files / "token"
        self._environment = {
            **environment(),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "WATTLINE_TOKEN_FILE": str(self.token),
        }
        conf = (
            Path(engine.environment["CONTAINERS_CONF"]).read_text().replace('netns = "host"\n', "")
        )
        (folder / "containers.conf").write_text(f'{conf}[network]\nnetwork_backend = "netavark"\n')

    def __enter__(self) -> Self:
        require("/usr/lib/podman/netavark", "netavark aardvark-dns")
        (self._folder / "storage.conf").write_text(
            _STORAGE.format(folder=self._folder, images=self._images)
        )
        for part in ("deploy", "grafana"):
            shutil.copytree(REPOSITORY / part, self._folder / part)
        self._write_secrets()
        self._gpus = self._drawing()
        spaces = ["unshare", "--pid", "--mount", "--net", "--mount-proc", "--fork", "--kill-child"]
        self._outside = subprocess.Popen(
            [*spaces, "sh", "-c", _BOOT, "boot", json.dumps(self._devices())]
        )
        eventually(self._is_up, "the node is up")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.run("podman", "rm", "--all", "--force", "--time=0")
        self._outside.send_signal(signal.SIGKILL)
        self._outside.wait()
        self._gpus.close()

    def _write_secrets(self) -> None:
        self.token.write_text(secrets.token_hex(32))
        os.chown(self.token, -1, CONTAINER_USER)
        self.token.chmod(0o640)
        (self.files / ".env").write_text("GF_SECURITY_ADMIN_PASSWORD=a-password\n")

    def _drawing(self) -> Simulation:
        """Return a simulation of two GPUs under a constant load."""
        path = self._folder / "driver" / simulation.FILE_NAME
        path.parent.mkdir()
        simulation.create(
            path, simulation.make_gpus(2, simulation.PRODUCTS["H200"]), simulation.clock_s()
        )
        path.chmod(0o666)
        simulated = Simulation.open(path)
        for gpu in range(2):
            simulated.set_load(gpu, Constant(self._power_w))
        return simulated

    def _devices(self) -> dict[str, Any]:
        """Return the Container Device Interface specification of all GPUs."""
        places = {nvml.library(): "/usr/lib/libnvidia-ml.so.1", self._folder / "driver": "/driver"}
        mounts = [
            {"hostPath": str(at), "containerPath": to, "options": ["bind"]}
            for at, to in places.items()
        ]
        given = {
            "env": [f"{simulation.ENVIRONMENT}=/driver/{simulation.FILE_NAME}"],
            "mounts": mounts,
        }
        every = {"name": "all", "containerEdits": given}
        return {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [every]}

    def _init(self) -> int:
        children = (
            Path(f"/proc/{self._outside.pid}/task/{self._outside.pid}/children").read_text().split()
        )
        return int(children[0]) if children else 0

    def _is_up(self) -> bool:
        assert self._outside.poll() is None, "the node did not start"
        return (
            bool(self._init()) and Path(f"/proc/{self._init()}/comm").read_text().strip() == "sleep"
        )

    def run(self, *command: str, within_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the node as root, in the folder of the compose file."""
        inside = [
            "nsenter",
            "-t",
            str(self._init()),
            "-m",
            "-n",
            "-p",
            f"--wdns={self.files}",
            *command,
        ]
        return subprocess.run(
            inside,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=within_s,
            check=False,
        )

    def output(self, *command: str) -> str:
        completed = self.run(*command)
        assert completed.returncode == 0, completed.stderr + self.log()
        return completed.stdout

    def ours(self, program: str, *arguments: str) -> str:
        """Return a command of Wattline, outside of any container."""
        start = (
            f"import sys; from wattline_{program}.cli import main; sys.argv[0] = '{program}'; "
            "sys.exit(main())"
        )
        return self.output(sys.executable, "-c", start, *arguments)

    def compose(self, *words: str) -> str:
        named = [word for file in self._composed for word in ("-f", file)]
        return self.output(sys.executable, "-m", "podman_compose", *named, *words)

    @contextlib.contextmanager
    def composed(self, *files: str, only: str = "") -> Iterator[None]:
        """Context in which the services are up; afterwards they and their volumes are removed."""
        self._composed = files
        try:
            self.compose("up", "-d", *only.split())
            yield
        finally:
            self.compose("down", "--volumes")

    def ask(self, url: str) -> str:
        """Return the response, or nothing without one."""
        return self.run(sys.executable, "-IS", "-c", _ASK, url).stdout

    def values(self, store: str, selector: str) -> list[float]:
        """Return the values of an instant query."""
        answer = self.ask(f"{store}/api/v1/query?{urlencode({'query': selector, 'nocache': 1})}")
        return (
            [float(series["value"][1]) for series in json.loads(answer)["data"]["result"]]
            if answer
            else []
        )

    def log(self) -> str:
        names = self.run("podman", "ps", "--all", "--format={{.Names}}").stdout.split()
        return "\n".join(
            f"{name}:\n{self.run('podman', 'logs', '--tail=20', name).stderr}" for name in names
        )

    def measure(self, run_id: str) -> float:
        """Run three seconds on all GPUs from outside with the token; return their energy in
        joules.
        """

        def _both_answer() -> bool:
            return self.ask(f"{EXPORTER}/metrics").count("wattline_gpu_power_watts{") == 2

        eventually(_both_answer, "both GPUs are read", self.log)
        self.ours("workloads", "run", "--run-id", run_id, "--gpus", "all", "--", "sleep", "3")
        run = json.loads(self.ask(f"{EXPORTER}/api/v1/runs/{run_id}"))
        return 2 * self._power_w * float(run["duration_seconds"])

    def reported_j(self, run_id: str, source: str) -> float:
        report = self.ours(
            "analyzer", "report", "--run-id", run_id, "--source", source, "--format", "json"
        )
        return float(json.loads(report)["energy"]["gpu"]["energy_joules"])

    def grafana_finds(self, source: str, *urls: str) -> list[str]:
        """Check that Grafana's user can read the provisioned files; return the responding
        services.
        """
        provisioning = REPOSITORY / "grafana" / "provisioning"
        data_source = provisioning / "datasources" / source
        (at,) = (
            line.partition("url: ")[2]
            for line in data_source.read_text().splitlines()
            if "  url: " in line
        )
        files = {
            "/etc/grafana/provisioning/datasources/wattline.yml": data_source,
            "/etc/grafana/provisioning/dashboards/wattline.yml": provisioning
            / "dashboards"
            / "wattline.yml",
            "/opt/wattline/dashboards/wattline-node.json": REPOSITORY
            / "grafana/dashboards/wattline-node.json",
        }
        look = (
            "python3",
            "-c",
            _LOOK,
            json.dumps([*files]),
            *(url.format(source=at) for url in urls),
        )
        texts = json.loads(self.compose("exec", "-T", "grafana", *look))
        assert texts[: len(files)] == [file.read_text() for file in files.values()]
        answers: list[str] = texts[len(files) :]
        return answers
