"""Compose files and their mounts, parsed as an engine parses them (`tests/deploy/test_image.py`
runs them).
"""

import copy
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import servers
from tests.grafana.query import DASHBOARDS
from wattline_exporter.web.access import HostNames

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "docker" / "compose.yml"
PROVISIONING = ROOT / "grafana" / "provisioning"
SERVICES = {"exporter", "prometheus", "grafana"}


VICTORIA_METRICS = COMPOSE.with_name("victoria-metrics.yml")


def read(text):
    """Return the parsed file, interpolated as Compose does with only the password set."""
    with_password = re.sub(r"\$\{GF_SECURITY_ADMIN_PASSWORD:\?[^}]*\}", "a-password", text)
    return yaml.safe_load(re.sub(r"\$\{WATTLINE_IMAGE:-([^}]*)\}", r"\1", with_password))


def with_victoria_metrics():
    """Return both files merged as Compose does: the later mount wins, services with a profile do
    not start.
    """
    result, more = read(COMPOSE.read_text()), read(VICTORIA_METRICS.read_text())
    for name, service in more["services"].items():
        before = result["services"].setdefault(name, {})
        mounts = {
            mount.split(":")[1]: mount
            for mount in before.get("volumes", []) + service.get("volumes", [])
        }
        before.update(copy.deepcopy(service), volumes=list(mounts.values()))
    result["services"] = {
        name: service for name, service in result["services"].items() if "profiles" not in service
    }
    result["volumes"] |= more["volumes"]
    return result


ALTERNATIVES = {
    "default": (read(COMPOSE.read_text()), SERVICES),
    "with VictoriaMetrics": (
        with_victoria_metrics(),
        SERVICES - {"prometheus"} | {"victoria-metrics", "vmalert"},
    ),
}


@pytest.fixture(params=ALTERNATIVES)
def services(request):
    result, expected = ALTERNATIVES[request.param]
    assert set(result["services"]) == expected
    return result["services"], result["volumes"]


def test_mounted_files_exist(services):
    result, volumes = services

    for service in result.values():
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert source in volumes or (COMPOSE.parent / source).exists(), mount
            assert target.startswith("/")
    assert (
        COMPOSE.parent
        / result["exporter"]["build"]["context"]
        / result["exporter"]["build"]["dockerfile"]
    ).exists()


def test_exporter_allows_the_host_name_used_by_the_scraper(services):
    command = services[0]["exporter"]["command"]
    options = [word.partition("=") for word in command if "=" in word]
    names = tuple(value for option, _, value in options if option == "--web.allowed-host")
    (listen,) = (
        value.rpartition(":")[0] for option, _, value in options if option == "--web.listen-address"
    )
    (job,) = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    hosts = HostNames(listen, names)

    for target in job["static_configs"][0]["targets"]:
        assert hosts.accept(target, "172.18.0.2")
    assert not hosts.accept("elsewhere:9847", "172.18.0.2")


def test_simulated_file_changes_only_the_gpus():
    class Loader(yaml.SafeLoader):
        """YAML loader that knows Compose's `!reset` tag."""

    Loader.add_constructor("!reset", lambda _loader, _node: None)
    simulated = yaml.load(COMPOSE.with_name("simulated.yml").read_text(), Loader)["services"]
    real = read(COMPOSE.read_text())["services"]["exporter"]["command"]

    assert simulated.keys() == {"exporter"}
    assert simulated["exporter"].pop("deploy") is None
    assert {*simulated["exporter"].pop("command")} == {*real, "--simulate=2xH200"}
    assert simulated["exporter"] == {}


def test_services_listen_on_loopback_without_privileges(services):
    for service in services[0].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service


def test_compose_file_contains_no_password():
    environment = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]["environment"]

    assert environment["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GF_SECURITY_ADMIN_PASSWORD:?")


@pytest.fixture
def etc_prometheus(tmp_path):
    """Folder with the files that the container has in /etc/prometheus."""
    for mount in read(COMPOSE.read_text())["services"]["prometheus"]["volumes"]:
        source, target, *_ = mount.split(":")
        if target.startswith("/etc/prometheus/"):
            path = tmp_path / target.removeprefix("/etc/prometheus/")
            path.parent.mkdir(exist_ok=True)
            shutil.copy(COMPOSE.parent / source, path)
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("/etc/prometheus", str(tmp_path)))
    return tmp_path


def test_prometheus_accepts_configuration_and_both_rule_files(etc_prometheus):
    call = [servers.require("promtool"), "check", "config", etc_prometheus / "prometheus.yml"]

    completed = subprocess.run(call, check=False, capture_output=True, text=True, timeout=60)

    assert completed.returncode == 0, completed.stdout + completed.stderr
    assert "2 rule files found" in completed.stdout


def test_victoria_metrics_and_vmalert_accept_the_files(etc_prometheus):
    scrape = ["-promscrape.config.dryRun", f"-promscrape.config={etc_prometheus}/prometheus.yml"]
    for call in (
        [servers.require("victoria-metrics"), *scrape, "-promscrape.config.strictParse=false"],
        [servers.require("vmalert"), "-dryRun", f"-rule={etc_prometheus}/rules/*.yml"],
    ):
        completed = subprocess.run(
            call, check=False, capture_output=True, text=True, timeout=60, cwd=etc_prometheus
        )
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("name", ["prometheus", "victoria-metrics"])
def test_provisioned_source_points_to_its_service(name):
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / f"{name}.yml").read_text())[
        "datasources"
    ]
    services = {
        **read(VICTORIA_METRICS.read_text())["services"],
        **read(COMPOSE.read_text())["services"],
    }
    host, port = source["url"].removeprefix("http://").split(":")

    assert source["type"] == "prometheus"
    assert any(published.endswith(f":{port}") for published in services[host]["ports"])
    scrape_interval = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["global"][
        "scrape_interval"
    ]
    assert source["jsonData"]["timeInterval"] == scrape_interval


def test_provisioned_folder_is_the_mounted_one():
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "wattline.yml").read_text())[
        "providers"
    ]
    grafana = read(COMPOSE.read_text())["services"]["grafana"]
    mounted = {
        target: source for source, target, *_ in (mount.split(":") for mount in grafana["volumes"])
    }

    assert (COMPOSE.parent / mounted[provider["options"]["path"]]).resolve() == DASHBOARDS.resolve()
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DASHBOARDS / home.relative_to(provider["options"]["path"])).exists()
