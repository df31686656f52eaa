"""deploy/prometheus/agent.yml with real agents: an outage of the server during a run loses no
joule.
"""

from __future__ import annotations

import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.daemon import begin, daemon, end
from tests.polling import eventually
from tests.servers import free_port, prometheus, query, require, victoria_metrics

AGENT_FILE = Path(__file__).parents[2] / "deploy" / "prometheus" / "agent.yml"
OUTAGE_S = 8.0
IDLE_W = 60.0
"""Less than the idle power of a simulated GPU."""


def agent_file(folder, exporter, write_url):
    """Return a copy of agent.yml with the addresses of the test, which scrapes each second."""
    settings = yaml.safe_load(AGENT_FILE.read_text())
    settings["global"]["scrape_interval"] = "1s"
    static = settings["scrape_configs"][0]["static_configs"][0]
    static["targets"] = [exporter.url.removeprefix("http://")]
    settings["remote_write"][0]["url"] = write_url
    path = folder / "agent.yml"
    path.write_text(yaml.safe_dump(settings))
    return path


def vmagent(file, folder, write_url):
    return [
        require("vmagent", "victoria-metrics"),
        f"-promscrape.config={file}",
        "-promscrape.config.strictParse=false",
        f"-remoteWrite.url={write_url}",
        f"-remoteWrite.tmpDataPath={folder / 'vmagent'}",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    ]


def prometheus_agent(file, folder, _write_url):
    return [
        require("prometheus"),
        "--enable-feature=agent",
        f"--config.file={file}",
        f"--storage.agent.path={folder / 'agent'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]


@contextmanager
def running(command, log):
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as agent:
        try:
            yield agent
        finally:
            agent.kill()  # on SIGTERM vmagent waits for its server


def receiving_prometheus(folder, port):
    return prometheus(folder, [], flags=["--web.enable-remote-write-receiver"], port=port)


def receiving_victoria_metrics(folder, port):
    return victoria_metrics(folder, [], flags=["-search.latencyOffset=0s"], port=port)


@pytest.mark.parametrize(
    ("agent", "server"),
    [(vmagent, receiving_victoria_metrics), (prometheus_agent, receiving_prometheus)],
)
def test_agent_run_during_an_outage_has_all_its_energy(tmp_path, agent, server):
    port = free_port()
    write_url = f"http://127.0.0.1:{port}/api/v1/write"
    energy = 'sum(last_over_time(wattline_run_energy_joules_total{component="gpu"}[5m]))'
    options = ("--simulate", "2xH200", "--no-collector.rapl", "--no-collector.host")
    with daemon(tmp_path, *options) as exporter:
        command = agent(agent_file(tmp_path, exporter, write_url), tmp_path, write_url)
        with running(command, tmp_path / "agent.log"):
            with server(tmp_path, port) as url:
                run = begin(exporter)
                eventually(lambda: query(url, energy), within_s=30)
            time.sleep(OUTAGE_S)
            end(exporter, run["run_id"])
            with server(tmp_path, port) as url:
                ended_series = f'wattline_run_end_timestamp_seconds{{run_id="{run["run_id"]}"}}'
                eventually(lambda: query(url, ended_series), within_s=60)
                _, ended = exporter.get(f"/api/v1/runs/{run['run_id']}")
                true_j = sum(ended["energy_joules"]["gpu"].values())
                eventually(lambda: query(url, energy) == [pytest.approx(true_j, rel=1e-12)])
                (up,) = query(url, 'last_over_time(up{job="wattline",instance="node-7"}[5m])')

    assert true_j > 2 * OUTAGE_S * IDLE_W
    assert up == 1.0
