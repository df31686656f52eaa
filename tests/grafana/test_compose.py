"""The compose file and what it mounts. No container engine runs it here: it is read as one would read it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from exporter.web.hosts import Hosts
from tests import servers
from tests.grafana.ask import DASHBOARDS

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "docker" / "compose.yml"
PROVISIONING = ROOT / "grafana" / "provisioning"
SERVICES = {"exporter", "prometheus", "grafana"}


def without_comments_of_victoria_metrics(text):
    """As one edits it who wants VictoriaMetrics; `#   key` loses its first two characters."""
    return re.sub(r"(?m)^  # ( *(?:[a-z_-]+:.*|- .*))$", r"  \1", text)


def read(text):
    """Interpolated as compose does it with only the password set; two marks of the file's own syntax."""
    with_password = re.sub(r"\$\{GF_SECURITY_ADMIN_PASSWORD:\?[^}]*\}", "a-password", text)
    return yaml.safe_load(re.sub(r"\$\{WATTLINE_IMAGE:-([^}]*)\}", r"\1", with_password))


ALTERNATIVES = {
    "as it stands": (COMPOSE.read_text(), SERVICES),
    "with VictoriaMetrics": (
        without_comments_of_victoria_metrics(COMPOSE.read_text()),
        SERVICES | {"victoria-metrics", "vmalert"},
    ),
}


@pytest.fixture(params=ALTERNATIVES)
def services(request):
    text, expected = ALTERNATIVES[request.param]
    found = read(text)
    assert set(found["services"]) == expected
    return found["services"], found["volumes"]


def test_all_that_is_mounted_exists(services):
    found, volumes = services

    for service in found.values():
        for mount in service["volumes"]:
            source, target, *_ = mount.split(":")
            assert source in volumes or (COMPOSE.parent / source).exists(), mount
            assert target.startswith("/")
    assert (COMPOSE.parent / found["exporter"]["build"]["context"] / found["exporter"]["build"]["dockerfile"]).exists()


def test_the_exporter_answers_to_the_name_by_which_it_is_scraped(services):
    command = services[0]["exporter"]["command"]
    names = tuple(command[i + 1] for i, word in enumerate(command) if word == "--web.allowed-host")
    listen = command[command.index("--web.listen-address") + 1].rpartition(":")[0]
    (job,) = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["scrape_configs"]
    hosts = Hosts(listen, names)

    for target in job["static_configs"][0]["targets"]:
        assert hosts.accept(target, "172.18.0.2")
    assert not hosts.accept("elsewhere:9847", "172.18.0.2")


def test_nothing_is_open_to_the_network_and_no_service_has_rights(services):
    for service in services[0].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service


def test_the_file_has_no_password():
    environment = yaml.safe_load(COMPOSE.read_text())["services"]["grafana"]["environment"]

    assert environment["GF_SECURITY_ADMIN_PASSWORD"].startswith("${GF_SECURITY_ADMIN_PASSWORD:?")


@pytest.fixture
def etc_prometheus(tmp_path):
    """What the container sees in /etc/prometheus."""
    for mount in read(COMPOSE.read_text())["services"]["prometheus"]["volumes"]:
        source, target, *_ = mount.split(":")
        if target.startswith("/etc/prometheus/"):
            path = tmp_path / target.removeprefix("/etc/prometheus/")
            path.parent.mkdir(exist_ok=True)
            shutil.copy(COMPOSE.parent / source, path)
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("/etc/prometheus", str(tmp_path)))
    return tmp_path


def test_prometheus_takes_its_configuration_and_both_files_of_rules(etc_prometheus):
    call = [servers.require("promtool"), "check", "config", etc_prometheus / "prometheus.yml"]

    done = subprocess.run(call, check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 rule files found" in done.stdout


def test_victoria_metrics_and_vmalert_take_the_same_files(etc_prometheus):
    scrape = ["-promscrape.config.dryRun", f"-promscrape.config={etc_prometheus}/prometheus.yml"]
    for call in (
        [servers.require("victoria-metrics"), *scrape, "-promscrape.config.strictParse=false"],
        [servers.require("vmalert"), "-dryRun", f"-rule={etc_prometheus}/rules/*.yml"],
    ):
        done = subprocess.run(call, check=False, capture_output=True, text=True, timeout=60, cwd=etc_prometheus)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["prometheus", "victoria-metrics"])
def test_a_provisioned_source_is_the_service_of_its_name(name):
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / f"{name}.yml").read_text())["datasources"]
    services = read(ALTERNATIVES["with VictoriaMetrics"][0])["services"]
    host, port = source["url"].removeprefix("http://").split(":")

    assert source["type"] == "prometheus"
    assert any(published.endswith(f":{port}") for published in services[host]["ports"])
    scrape_interval = yaml.safe_load((COMPOSE.parent / "prometheus.yml").read_text())["global"]["scrape_interval"]
    assert source["jsonData"]["timeInterval"] == scrape_interval


def test_the_provisioned_folder_is_where_the_dashboards_are_mounted():
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "wattline.yml").read_text())["providers"]
    grafana = read(COMPOSE.read_text())["services"]["grafana"]
    mounted = {target: source for source, target, *_ in (mount.split(":") for mount in grafana["volumes"])}

    assert (COMPOSE.parent / mounted[provider["options"]["path"]]).resolve() == DASHBOARDS.resolve()
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DASHBOARDS / home.relative_to(provider["options"]["path"])).exists()
