"""Container image, built by Podman on a minimal Debian, and compose.yml with it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import requests

from tests.deploy.compose_node import DOCKER, EXPORTER, Node
from tests.deploy.machine import REPOSITORY
from tests.deploy.substitute_images import substitute_images
from tests.fakes.podman import Podman, configured_podman
from tests.fakes.powercap import Powercap
from tests.polling import eventually
from tests.servers import require

IMAGE = "localhost/wattline-exporter:test"
_BASE = REPOSITORY / "build" / "debian-trixie.tar"
_CLOSED = ("--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--network=host")
_CERTIFICATES = Path("/etc/ssl/certs")
POWER_W = 300.0
ENDED = 'wattline_run_outcome_info{{run_id="{}"}}'
ENERGY = "wattline_gpu_energy_joules_total"
GROUPS = {"wattline", "wattline_requests", "wattline_fleet", "wattline_fleet_hourly"}
PROMETHEUS = "http://127.0.0.1:9090"
VICTORIA_METRICS = "http://127.0.0.1:8428"


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    if os.geteuid() != 0:
        pytest.skip("making a minimal Debian needs root")
    with tempfile.TemporaryDirectory(prefix="image-", dir="/var/tmp") as name:
        engine = configured_podman(Path(name), storage="overlay")
        engine("import", str(_base()), "localhost/base", within_s=300)
        build = (
            "--isolation=chroot",
            "--network=host",
            "--layers=false",
            "--format=docker",
            "--build-arg=BASE=localhost/base",
        )
        file = str(DOCKER / "Dockerfile")
        engine(
            "build",
            *build,
            *_lent(Path(name)),
            "--tag",
            IMAGE,
            "--file",
            file,
            str(REPOSITORY),
            within_s=540,
        )
        yield engine
        engine("rm", "--all", "--force", "--time=0")
        engine("rmi", "--all", "--force")


def _lent(folder: Path) -> list[str]:
    """Return the options that pass this machine's package sources to pip during the build."""
    settings = Path("/etc/pip.conf")
    if not settings.exists():
        return []
    moved = folder / "pip.conf"
    moved.write_text(settings.read_text().replace(str(_CERTIFICATES), "/certificates"))
    return [f"--volume={moved}:/etc/pip.conf:ro", f"--volume={_CERTIFICATES}:/certificates:ro"]


def _base() -> Path:
    """Return the archive of a minimal Debian, made once."""
    if not _BASE.exists():
        mmdebstrap = require("mmdebstrap", "mmdebstrap")
        _BASE.parent.mkdir(exist_ok=True)
        unfinished = _BASE.with_suffix(f".{os.getpid()}.tar")
        made = [
            mmdebstrap,
            "--quiet",
            "--variant=minbase",
            "--dpkgopt=force-unsafe-io",
            "trixie",
            str(unfinished),
        ]
        subprocess.run(made, check=True, capture_output=True, timeout=500)
        unfinished.rename(_BASE)
    return _BASE


@pytest.fixture(scope="module")
def address(podman: Podman) -> str:
    return _started(podman, "exporter")


def _started(
    podman: Podman,
    name: str,
    *more: str,
    state: str = "--volume=/var/lib/wattline",
    serve: Sequence[str] = (),
) -> str:
    """Return the address of an exporter in a container without capabilities and with a read-only
    root.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    storage = ("--tmpfs=/tmp", state)
    options = ("serve", "--web.listen-address", f"127.0.0.1:{port}", "--simulate", "2xH200", *serve)
    podman("run", "--detach", "--name", name, *_CLOSED, *storage, *more, IMAGE, *options)
    address = f"http://127.0.0.1:{port}"

    def _is_read() -> bool:
        try:
            return (
                "wattline_gpu_power_watts{" in requests.get(f"{address}/metrics", timeout=10).text
            )
        except requests.ConnectionError:
            return False

    eventually(
        _is_read,
        "it is scraped",
        lambda: podman("inspect", "--format", "{{.State}}", name),
        within_s=60,
    )
    return address


def test_image_is_scraped_and_keeps_a_run(podman: Podman, address: str) -> None:
    begun = requests.post(
        f"{address}/api/v1/runs", json={"workload": "probe", "run_id": "probe"}, timeout=10
    )
    assert begun.status_code == 201, begun.text
    ended = requests.post(
        f"{address}/api/v1/runs/probe/end", json={"outcome": "ok"}, timeout=10
    ).json()
    assert sum(ended["energy_joules"]["gpu"].values()) > 0
    assert "state.sqlite" in podman("exec", "exporter", "ls", "/var/lib/wattline")


def test_image_has_no_root_process_or_setuid_file(podman: Podman, address: str) -> None:
    status = podman("exec", "exporter", "cat", "/proc/1/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["65532"] * 4
    assert {int(fields[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert fields["NoNewPrivs"] == "1"


def test_image_health_check_works_without_a_shell(podman: Podman, address: str) -> None:
    (image,) = json.loads(podman("image", "inspect", IMAGE))
    kind, *check = image["Healthcheck"]["Test"]
    assert kind == "CMD"
    check[-1] = check[-1].replace("http://127.0.0.1:9847", address)
    podman("exec", "exporter", *check)
    check[-1] = check[-1].replace(address, "http://127.0.0.1:9")
    with pytest.raises(AssertionError, match="refused"):
        podman("exec", "exporter", *check)


def test_image_sbom_equals_the_installed_packages(podman: Podman, address: str) -> None:
    """Use the README's command on the image in a file."""
    saved = podman.folder / "image.tar"
    podman(
        "save", "--quiet", "--format=docker-archive", "--output", str(saved), IMAGE, within_s=180
    )
    syft = [
        sysconfig.get_path("scripts") + "/syft",
        "scan",
        f"docker-archive:{saved}",
        "--output=cyclonedx-json",
    ]
    offline = {**os.environ, "SYFT_CHECK_FOR_APP_UPDATE": "false"}
    listed = subprocess.run(syft, env=offline, capture_output=True, check=True, timeout=180).stdout
    saved.unlink()
    result = [
        (part.get("purl", "").split("/")[0], part) for part in json.loads(listed)["components"]
    ]
    versions = (
        "import importlib.metadata as m; print(*(f'{d.name}={d.version}' for d in "
        "m.distributions()))"
    )
    python = podman("exec", "exporter", "python3", "-c", versions).lower().replace("_", "-").split()
    debian = podman(
        "exec", "exporter", "dpkg-query", "--show", "--showformat=${Package}=${Version}\n"
    ).split()
    assert sorted(
        f"{part['name']}={part['version']}" for kind, part in result if kind == "pkg:pypi"
    ) == sorted(python)
    assert sorted(
        f"{part['name']}={part['version']}" for kind, part in result if kind == "pkg:deb"
    ) == sorted(debian)
    names = {part.partition("=")[0] for part in (*python, *debian)}
    assert {
        "wattline",
        "aiohttp",
        "nvidia-ml-py",
        "prometheus-client",
        "grpcio",
        "ca-certificates",
    } <= names
    assert not {"pip", "python3-pip", "python3-pip-whl", "python3-venv", "pandas", "torch"} & names


def test_image_size_matches_the_readme(podman: Podman) -> None:
    layers = [layer["size"] for layer in json.loads(podman("history", "--format=json", IMAGE))]
    wattline, python, _ = [size for size in layers if size > 1_000_000]
    assert wattline < 130e6
    assert python < 45e6


def test_image_stops_within_the_grace_period(podman: Podman, address: str) -> None:
    _started(podman, "short")
    podman("stop", "--time=10", "short")
    assert podman.state("short")["ExitCode"] == 0


@pytest.mark.parametrize(("user", "reads"), [("0:0", True), ("65532:65532", False)])
def test_image_rapl_is_readable_by_root_only(
    podman: Podman, tmp_path: Path, user: str, reads: bool
) -> None:
    """The files belong to root, so the overlay `rapl` needs no capability."""
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
    address = _started(
        podman, name, "--user", user, host, state=state, serve=["--path.sysfs", "/host/sys"]
    )
    shown = (
        "wattline_cpu_energy_joules_total{" in requests.get(f"{address}/metrics", timeout=10).text
    )
    podman("rm", "--force", "--time=0", name)
    assert shown is reads


@pytest.fixture(scope="module")
def node(podman: Podman) -> Iterator[Node]:
    """Yield a node with the image and substitutes for third-party images."""
    podman("tag", IMAGE, "localhost/wattline-exporter")
    substitute_images(podman, IMAGE)
    with (
        tempfile.TemporaryDirectory(prefix="composed-", dir="/var/tmp") as name,
        Node(Path(name), podman, POWER_W) as up,
    ):
        yield up


def test_compose_run_survives_down_and_up(node: Node) -> None:
    with node.composed("compose.yml"):
        drawn_j = node.measure("kept")
        eventually(
            lambda: node.values(PROMETHEUS, ENDED.format("kept")) == [1.0],
            "the run is scraped",
            node.log,
        )
        assert node.reported_j("kept", PROMETHEUS) == pytest.approx(drawn_j, rel=0.02)
        before_j = node.values(PROMETHEUS, ENERGY)
        assert len(before_j) == 2
        down_s = time.time()
        node.compose("down")
        node.compose("up", "-d")
        again = f"timestamp(up) > {down_s} and up == 1"
        eventually(lambda: node.values(PROMETHEUS, again), "it is scraped again", node.log)
        after_j = node.values(PROMETHEUS, ENERGY)
        assert [later > sooner for sooner, later in zip(before_j, after_j, strict=True)] == [
            True,
            True,
        ]
        for source in (PROMETHEUS, EXPORTER):
            assert node.reported_j("kept", source) == pytest.approx(drawn_j, rel=0.02)
        up, rules = node.grafana_finds(
            "prometheus.yml", "{source}/api/v1/query?query=up", "{source}/api/v1/rules"
        )
        assert json.loads(up)["data"]["result"][0]["value"][1] == "1"
        assert {group["name"] for group in json.loads(rules)["data"]["groups"]} == GROUPS


def test_compose_works_with_victoria_metrics(node: Node) -> None:
    with node.composed("compose.yml", "victoria-metrics.yml"):
        drawn_j = node.measure("other")
        scraped = ENDED.format("other")
        eventually(
            lambda: node.values(VICTORIA_METRICS, scraped) == [1.0], "the run is scraped", node.log
        )
        assert node.reported_j("other", VICTORIA_METRICS) == pytest.approx(drawn_j, rel=0.02)
        query = ("{source}/api/v1/query?query=up&nocache=1", "http://vmalert:8880/api/v1/rules")
        up, rules = node.grafana_finds("victoria-metrics.yml", *query)
        assert json.loads(up)["data"]["result"][0]["value"][1] == "1"
        assert {group["name"] for group in json.loads(rules)["data"]["groups"]} == GROUPS
        running = node.output("podman", "ps", "--format={{.Names}}").split()
        assert sorted(running) == [
            f"wattline_{name}_1" for name in ("exporter", "grafana", "victoria-metrics", "vmalert")
        ]


def test_compose_simulates_gpus_without_hardware(node: Node) -> None:
    """Simulated GPUs have idle power only, unlike those of the node."""

    def _watts() -> list[float]:
        lines = node.ask(f"{EXPORTER}/metrics").splitlines()
        return [
            float(line.split()[-1])
            for line in lines
            if line.startswith("wattline_gpu_power_watts{")
        ]

    with node.composed("compose.yml", "simulated.yml", only="exporter"):
        eventually(lambda: len(_watts()) == 2, "both are read", node.log)
        assert _watts() == pytest.approx([78.0, 78.0], abs=2)
