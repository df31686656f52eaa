"""Agreement of all commands between Prometheus, VictoriaMetrics and a history file."""

import json
import math
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack

import numpy as np
import pytest

from tests import servers
from tests.analyzer import experiments
from tests.analyzer.node import write_history
from tests.polling import eventually
from wattline_analyzer.cli import main
from wattline_analyzer.core.runs.raw import SeriesSpool
from wattline_analyzer.export.output import openmetrics

COMMANDS = {
    "runs": ("runs",),
    "report": ("report", "--run-id", "cap-400-1", "--carbon", "100"),
    "recommend": ("recommend", "--experiment", experiments.SWEEP),
    "compare": (
        "compare",
        "experiment=caps,power_limit_watts=500",
        "experiment=caps,power_limit_watts=400",
    ),
    "variability": ("variability", "--experiment", experiments.VARY),
    "tenants": ("tenants", "--experiment", experiments.PAIR),
}


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Sources with the same samples: a history file, Prometheus's blocks, a VictoriaMetrics."""
    promtool = servers.require("promtool")
    servers.require("prometheus"), servers.require("victoria-metrics")
    folder = tmp_path_factory.mktemp("alone")
    series = experiments.series(math.floor(time.time()) - 1_800.0)
    (folder / "spool").mkdir()
    spool = SeriesSpool(folder / "spool")
    spool.add((entry.labels, *np.array(entry.samples, dtype=np.float64).T) for entry in series)
    exported = folder / "all.om"
    exported.write_text("".join(openmetrics(spool.series())))
    blocks = folder / "prometheus"
    (blocks / "prometheus").mkdir(parents=True)
    (folder / "victoria-metrics").mkdir()
    command = [
        promtool,
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        exported,
        blocks / "prometheus",
    ]
    subprocess.run(command, capture_output=True, check=True, timeout=120)
    with ExitStack() as stack:
        prometheus = stack.enter_context(servers.prometheus(blocks, []))
        victoria_metrics = stack.enter_context(
            servers.victoria_metrics(folder / "victoria-metrics", [])
        )
        request = urllib.request.Request(
            f"{victoria_metrics}/api/v1/import/prometheus", data=exported.read_bytes()
        )
        urllib.request.urlopen(request).close()
        last = 'count_over_time(wattline_run_end_timestamp_seconds{run_id="both-large"}[1h])'
        eventually(
            lambda: sum(servers.query(victoria_metrics, last)) >= 6, "the import", within_s=60
        )
        history = str(write_history(folder, series))
        yield {"history": history, "prometheus": prometheus, "victoria-metrics": victoria_metrics}


@pytest.fixture(scope="module")
def cache():
    """Cache of results by command and source."""
    return {}


@pytest.fixture
def document(places, cache, capsys, monkeypatch):
    """Return the JSON of a command without the name of its source."""

    def read(command, source):
        if (command, source) not in cache:
            cache[command, source] = cached_result(command, source)
        return cache[command, source]

    def cached_result(command, source):
        monkeypatch.setattr(
            sys,
            "argv",
            ["analyzer", *COMMANDS[command], "--source", places[source], "--format", "json"],
        )
        with pytest.raises(SystemExit) as left:
            main()
        shown, stderr = capsys.readouterr()
        assert left.value.code == 0, stderr
        return json.loads(shown.replace(places[source], "SOURCE"))

    return read


def leaves(data, path=""):
    if isinstance(data, dict):
        return {
            key: leaf
            for name, value in data.items()
            for key, leaf in leaves(value, f"{path}.{name}").items()
        }
    if isinstance(data, list):
        return {
            key: leaf
            for at, value in enumerate(data)
            for key, leaf in leaves(value, f"{path}[{at}]").items()
        }
    return {path: data}


def same(result, expected):
    result, expected = leaves(result), leaves(expected)
    assert result.keys() == expected.keys()
    for path, value in expected.items():
        near = isinstance(value, float) and isinstance(result[path], float)
        assert result[path] == (pytest.approx(value, rel=1e-9, abs=1e-9) if near else value), path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_agree_between_servers_and_history(document, command):
    expected = document(command, "history")

    same(document(command, "prometheus"), expected)
    same(document(command, "victoria-metrics"), expected)


def test_recommend_from_servers_gives_expected_advice(document):
    (sweep,) = document("recommend", "prometheus")["sweeps"]

    # two GPUs: 800 W / 16 = 50 J, 1,000 W / 17 = 58.8 J a step
    assert (sweep["verdict"], sweep["advised"]) == ("apply", "400 W")
    assert sweep["settings"][0]["cost"] == pytest.approx(50, rel=0.002)
    assert all(each["binds"] for each in sweep["settings"])
    assert sweep["commands"] == ["nvidia-smi -i 0,1 -pl 400"]


def test_tenants_from_servers_give_expected_figures(document):
    (mix,) = document("tenants", "victoria-metrics")["mixes"]
    result = {name: figure["value"] for name, figure in mix["figures"].items()}

    assert (mix["tenants"], mix["overlap_seconds"]) == (["large", "small"], pytest.approx(30))
    assert result["stp"] == pytest.approx(1.2)  # 80 of 100 and 20 of 50 steps a second
    assert result["antt"] == pytest.approx((100 / 80 + 50 / 20) / 2)
    assert result["total_per_second"] == pytest.approx(100)
    assert result["energy_joules"] == pytest.approx(12_000)  # 400 W x 30 s, of which 60 % and 40 %
