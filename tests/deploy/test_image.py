"""The container image, built by Podman on a base that debootstrap makes of Debian's packages."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import requests

from tests.daemon import eventually
from tests.deploy.machine import REPOSITORY
from tests.fakes.podman import Podman, settled
from tests.fakes.powercap import Powercap
from tests.servers import require

IMAGE = "localhost/wattline-exporter:test"
_BASE = REPOSITORY / "build" / "debian-python.tar"
_CLOSED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host")
_MIRROR = ("/etc/pip.conf", "/etc/ssl/certs")
"""What leads pip to where this machine's packages come from."""


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if os.geteuid() != 0:
        pytest.skip("debootstrap needs root")
    with tempfile.TemporaryDirectory(prefix="image-", dir="/var/tmp") as name:
        engine = settled(Path(name), storage="overlay")
        engine("import", str(_base()), "localhost/base", within_s=300)
        lent = [f"--volume={path}:{path}:ro" for path in _MIRROR if Path(path).exists()]
        build = ("--isolation=chroot", "--network=host", "--format=docker", "--build-arg=BASE=localhost/base", *lent)
        file = str(REPOSITORY / "deploy/docker/Dockerfile")
        engine("build", *build, "--tag", IMAGE, "--file", file, str(REPOSITORY), within_s=540)
        yield engine
        engine("rm", "--all", "--force", "--time=0")
        engine("rmi", "--all", "--force")


def _base() -> Path:
    """A root with Python, made once."""
    if not _BASE.exists():
        debootstrap = require("debootstrap", "debootstrap")
        _BASE.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir="/var/tmp") as root:
            packages = "--include=python3,python3-venv,ca-certificates"
            made = [debootstrap, "--variant=minbase", packages, "bookworm", root]
            subprocess.run(made, check=True, capture_output=True, timeout=500)
            unfinished = _BASE.with_suffix(f".{os.getpid()}")
            subprocess.run(["tar", "-C", root, "-cf", unfinished, "."], check=True)
            unfinished.rename(_BASE)
    return _BASE


@pytest.fixture(scope="module")
def address(podman: Podman) -> str:
    return _started(podman, "exporter")


def _started(
    podman: Podman, name: str, *more: str, state: str = "--volume=/var/lib/wattline", serve: Sequence[str] = ()
) -> str:
    """The address of an exporter in a container with every right taken, on a root that cannot be written."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    storage = ("--tmpfs=/tmp", state)
    options = ("serve", "--web.listen-address", f"127.0.0.1:{port}", "--simulate", "2xH200", *serve)
    podman("run", "--detach", "--name", name, *_CLOSED, *storage, *more, IMAGE, *options)
    address = f"http://127.0.0.1:{port}"

    def _is_read() -> bool:
        try:
            return "wattline_gpu_power_watts{" in requests.get(f"{address}/metrics", timeout=10).text
        except requests.ConnectionError:
            return False

    eventually(_is_read, "it is scraped", lambda: podman("inspect", "--format", "{{.State}}", name), within_s=60)
    return address


def test_it_is_scraped_and_keeps_a_run(podman: Podman, address: str) -> None:
    begun = requests.post(f"{address}/api/v1/runs", json={"workload": "probe", "run_id": "probe"}, timeout=10)
    assert begun.status_code == 201, begun.text
    ended = requests.post(f"{address}/api/v1/runs/probe/end", json={"outcome": "ok"}, timeout=10).json()
    assert sum(ended["energy_joules"]["gpu"].values()) > 0
    assert "state.sqlite" in podman("exec", "exporter", "ls", "/var/lib/wattline")


def test_nobody_there_is_root_or_may_become_it(podman: Podman, address: str) -> None:
    status = podman("exec", "exporter", "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["65532"] * 4
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"


def test_its_health_check_needs_no_shell_and_tells_the_truth(podman: Podman, address: str) -> None:
    (image,) = json.loads(podman("image", "inspect", IMAGE))
    kind, *check = image["Healthcheck"]["Test"]
    assert kind == "CMD"
    check[-1] = check[-1].replace("http://127.0.0.1:9847", address)
    podman("exec", "exporter", *check)
    check[-1] = check[-1].replace(address, "http://127.0.0.1:9")
    with pytest.raises(AssertionError, match="refused"):
        podman("exec", "exporter", *check)


def test_what_is_in_it_can_be_listed_and_nothing_installs_more(podman: Podman, address: str) -> None:
    listed = (
        "import importlib.metadata as m; print(*sorted({d.name.lower().replace('_', '-') for d in m.distributions()}))"
    )
    names = podman("exec", "exporter", "python3", "-c", listed).split()
    assert {"wattline", "aiohttp", "nvidia-ml-py", "prometheus-client", "grpcio"} <= set(names)
    assert not {"pip", "pandas", "torch"} & set(names)


def test_it_stops_within_its_time(podman: Podman, address: str) -> None:
    _started(podman, "short")
    podman("stop", "--time=10", "short")
    assert podman.state("short")["ExitCode"] == 0


@pytest.mark.parametrize(("user", "reads"), [("0:0", True), ("65532:65532", False)])
def test_root_without_a_capability_reads_rapl_and_another_user_does_not(
    podman: Podman, tmp_path: Path, user: str, reads: bool
) -> None:
    """So the overlay `rapl` needs no capability: the files are root's own."""
    tree = Powercap(tmp_path / "sys")
    tree.zone("intel-rapl:0", "package-0", 1_000.0)
    tree.energy_file("intel-rapl:0").chmod(0o400)
    tmp_path.chmod(0o755)
    host = f"--volume={tmp_path / 'sys'}:/host/sys:ro"
    name = f"rapl-{reads}"
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(0o777)
    state = f"--volume={folder}:/var/lib/wattline"
    address = _started(podman, name, "--user", user, host, state=state, serve=["--path.sysfs", "/host/sys"])
    shown = "wattline_cpu_energy_joules_total{" in requests.get(f"{address}/metrics", timeout=10).text
    podman("rm", "--force", "--time=0", name)
    assert shown is reads
