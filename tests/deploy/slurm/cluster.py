"""Real Slurm cluster of two nodes on this machine, with slurmdbd and MariaDB, and an exporter on
each node.

The packages are Debian's. A node is a mount and cgroup namespace with its own slurmd and exporter.
The GPUs are those of the stand-in driver library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.daemon import environment
from tests.deploy.slurm.configuration import GPUS, write_configuration
from tests.fakes import nvml
from tests.polling import eventually
from tests.servers import free_port
from wattline_exporter import simulation
from wattline_exporter.simulation import Simulation

FREEZER = Path("/sys/fs/cgroup/freezer")
PROGRAMS = {
    "munged": "munge",
    "mariadbd": "mariadb-server",
    "slurmdbd": "slurmdbd",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
}
GRAMS_PER_KWH = 400.0
_NAMES = ("n1", "n2")
_ENDED_WITHIN_S = 15.0
_NODE = """
echo $$ > "$1/cgroup.procs"
exec unshare --mount --cgroup sh -c '
mount --make-rprivate / && mount --bind "$1" /sys/fs/cgroup/freezer && echo up && exec sleep infinity' sh "$1"
"""


def missing_packages() -> list[str]:
    """Return the Debian packages to install."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    return [
        package for program, package in PROGRAMS.items() if not shutil.which(program, path=path)
    ]


@dataclass
class Node:
    """A node of the cluster: its namespaces, its exporter and the simulation of its GPUs."""

    name: str
    url: str
    outside: subprocess.Popen[bytes]
    simulation: Simulation
    exporter: subprocess.Popen[bytes] | None = None

    def runs(self) -> dict[str, dict[str, Any]]:
        return {
            run["run_id"]: run for run in requests.get(f"{self.url}/api/v1/runs", timeout=10).json()
        }

    def samples(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Return labels and value of each sample of the exporter, by metric name."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(
            requests.get(f"{self.url}/metrics", timeout=10).text
        ):
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def true_j(self, run: dict[str, Any]) -> float:
        """Return the energy that the run's GPUs drew in its time."""
        begin_s = run["started_at"] - (time.time() - self.simulation.now())
        end_s = begin_s + run["duration_seconds"]
        return sum(self.simulation.energy_j(int(gpu["gpu"]), begin_s, end_s) for gpu in run["gpus"])


class SlurmCluster:
    """Cluster that starts when the context is entered and is gone when it is left."""

    def __init__(self, folder: Path, options: Mapping[str, Sequence[str]]) -> None:
        self.folder = folder
        self._options = options
        self._ports = {
            name: free_port()
            for name in ("ctld_port", "dbd_port", "n1_port", "n2_port", "exporter_port")
        }
        self._etc = folder / "etc/slurm"
        self.environment = {
            **environment(),
            "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin",
            "SLURM_CONF": str(self._etc / "slurm.conf"),
            "MYSQL_UNIX_PORT": str(folder / "mysql.sock"),
        }
        self._stack = ExitStack()
        self.nodes: dict[str, Node] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._stack = stack
            write_configuration(self.folder, self._ports)
            self._start_database()
            self._start_controller()
            for name in _NAMES:
                self.nodes[name] = self._start_node(name)
            for node in self.nodes.values():
                self.start_exporter(node)
            eventually(
                lambda: set(self.run("sinfo", "-h", "-N", "-o", "%T").split()) == {"idle"},
                "idle nodes",
                self.log,
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    # -- for tests

    def run(self, *words: str, check: bool = True) -> str:
        """Return the output of a command on the controller."""
        done = subprocess.run(
            words,
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert not check or done.returncode == 0, (words, done.stderr, self.log())
        return done.stdout

    def submit(self, *options: str, script: str) -> str:
        """Submit a batch job and return its number."""
        out = ("--parsable", "--chdir", str(self.folder), "-o", str(self.folder / "job-%j.out"))
        return self.run("sbatch", *out, *options, "--wrap", script).strip()

    def load(self, seconds: float, utilization: float = 0.5) -> str:
        """Return a command that loads the GPUs of its job."""
        return (
            f"exec {sys.executable} {Path(__file__).with_name('load.py')} {self.folder} "
            f"{seconds} {utilization}"
        )

    def comment(self, job: str) -> str:
        return self._record(job)[1]

    def state(self, job: str) -> str:
        """Return the state of the job in the accounting database."""
        return self._record(job)[0]

    def _record(self, job: str) -> tuple[str, str]:
        rows = self.run(
            "sacct", "-n", "-P", "-X", "-j", job, "-o", "jobidraw,state,admincomment"
        ).splitlines()
        found = [
            row.split("|") for row in rows if row.split("|")[0] == job
        ]  # sacct lists all tasks of an array
        return (found[-1][1], found[-1][2]) if found else ("", "")

    def processes(self, job: str, node: Node) -> list[int]:
        """Return the processes of a job on a node."""
        files = _group(node.name).glob(f"*/*/job_{job}/*/cgroup.procs")
        return [int(pid) for file in files for pid in file.read_text().split()]

    def wait_for_state(self, job: str, *states: str) -> None:
        eventually(
            lambda: self.state(job).split(" ")[0] in states,
            f"job {job} is {states}",
            self.log,
            within_s=60,
        )

    def log(self) -> str:
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(
            f"== {file.name}\n{file.read_text(errors='replace')[-4000:]}" for file in files
        )

    # -- parts

    def _start(
        self, name: str, *words: str, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program that is stopped at the end."""
        with (self.folder / f"{name}.log").open("ab") as log:
            started = subprocess.Popen(
                words,
                env=env or self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        self._stack.callback(_stop, started)
        return started

    def _start_database(self) -> None:
        f = self.folder
        munge = ("--foreground", "--force", f"--key-file={f}/munge.key", f"--socket={f}/munge.sock")
        files = (
            f"--pid-file={f}/munged.pid",
            f"--seed-file={f}/munge.seed",
            f"--log-file={f}/munged-file.log",
        )
        self._start("munged", "munged", *munge, *files)
        sql = ("--no-defaults", "--user=root", f"--datadir={f}/mysql", f"--tmpdir={f}/tmp")
        self.run(
            "mariadb-install-db", *sql, "--auth-root-authentication-method=normal", "--skip-test-db"
        )
        quick = (
            "--innodb-buffer-pool-size=32M",
            "--innodb-flush-log-at-trx-commit=0",
            "--innodb-log-file-size=16M",
        )
        self._start(
            "mariadbd", "mariadbd", *sql, f"--socket={f}/mysql.sock", "--skip-networking", *quick
        )
        ping = ("mariadb-admin", "--no-defaults", f"--socket={f}/mysql.sock", "ping")
        eventually(
            lambda: "alive" in self.run(*ping, check=False), "MariaDB", self.log, within_s=30
        )
        self._start("slurmdbd", "slurmdbd", "-D")
        eventually(
            lambda: "lab" in self._add_account(), "the cluster in slurmdbd", self.log, within_s=30
        )

    def _add_account(self) -> str:
        self.run("sacctmgr", "-i", "add", "cluster", "lab", check=False)
        self.run("sacctmgr", "-i", "add", "account", "research", check=False)
        self.run("sacctmgr", "-i", "add", "user", "root", "account=research", check=False)
        return self.run("sacctmgr", "-n", "-P", "show", "assoc", "where", "user=root", check=False)

    def _start_controller(self) -> None:
        self._start("slurmctld", "slurmctld", "-D", "-c")
        eventually(
            lambda: "UP" in self.run("scontrol", "ping", check=False),
            "slurmctld",
            self.log,
            within_s=30,
        )

    def _start_node(self, name: str) -> Node:
        group = _group(name)
        group.mkdir()
        self._stack.callback(_remove_group, group)
        outside = subprocess.Popen(["sh", "-c", _NODE, "sh", str(group)], stdout=subprocess.PIPE)
        self._stack.callback(_stop, outside)
        assert outside.stdout
        assert outside.stdout.readline() == b"up\n"
        state = self.folder / name
        state.mkdir()
        file = state / simulation.FILE_NAME
        product = simulation.PRODUCTS["H200"]
        simulation.create(file, simulation.make_gpus(GPUS, product, name), simulation.clock_s())
        simulated = Simulation.open(file)
        self._stack.callback(simulated.close)
        number = _NAMES.index(name) + 21
        node = Node(
            name, f"http://127.0.0.{number}:{self._ports['exporter_port']}", outside, simulated
        )
        self._start(f"slurmd-{name}", *self.inside(node), "slurmd", "-D", "-N", name)
        return node

    def start_exporter(self, node: Node) -> None:
        """Start the exporter of a node, which continues the state of an earlier one."""
        state = self.folder / node.name
        options = (
            *(
                "--web.listen-address",
                node.url.removeprefix("http://"),
                "--state.path",
                str(state / "state"),
            ),
            *(
                "--web.api-socket",
                str(self.folder / f"{node.name}.sock"),
                "--no-collector.host",
                "--no-collector.rapl",
            ),
            *(
                "--carbon.provider",
                "static",
                "--carbon.intensity",
                f"{GRAMS_PER_KWH:g}",
                *self._options[node.name],
            ),
        )
        words = (*self.inside(node), sys.executable, "-m", "wattline_exporter", "serve", *options)
        gpus = nvml.environment(state / simulation.FILE_NAME)
        node.exporter = self._start(
            f"exporter-{node.name}", *words, env={**self.environment, **gpus}
        )
        eventually(lambda: self._is_ready(node), "the exporter", self.log, within_s=30)

    def stop_exporter(self, node: Node) -> None:
        if node.exporter:
            _stop(node.exporter)

    def _is_ready(self, node: Node) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"{node.url}/-/ready", timeout=5).status_code == 200
        return False

    def inside(self, node: Node) -> Sequence[str]:
        """Return the words before a command that runs in the namespaces of the node."""
        return ("nsenter", "-t", str(node.outside.pid), "-m", "-C")


def _group(name: str) -> Path:
    return FREEZER / f"wattline-slurm-{os.getpid()}-{name}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.stdout:
        process.stdout.close()
    process.terminate()
    try:
        process.wait(_ENDED_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _remove_group(group: Path) -> None:
    """Kill the processes left in the cgroup of a node, and remove the cgroup."""
    for _ in range(100):
        for file in group.rglob("cgroup.procs"):
            for pid in file.read_text().split():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), 9)
        with suppress(OSError):
            for folder in sorted(
                (path for path in group.rglob("*") if path.is_dir()), reverse=True
            ):
                folder.rmdir()
            group.rmdir()
        if not group.exists():
            return
        time.sleep(0.05)
