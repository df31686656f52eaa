"""`analyzer usage` of a real exporter over its restart: from its API, its history file, and a
Prometheus.
"""

from __future__ import annotations

import getpass
import json
import os
import time
from contextlib import ExitStack

import pytest

from tests import daemon, servers
from tests.fakes import nvml
from tests.polling import eventually
from wattline.contract import metrics as m
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Simulation,
    create,
    make_gpus,
)

LOAD_W, HELD_S = 500.0, 3.0
UNATTRIBUTED = f'{m.RUN_ATTRIBUTED_ENERGY.name}{{run_id=""}}'
SOURCES = ("exporter", "history", "prometheus")


@pytest.fixture(scope="module")
def documents(tmp_path_factory, analyzer):
    """Documents by source and --by; GPU 0 draws 500 W, runs hold it for 3 s each, before and after
    a restart.
    """
    servers.require("prometheus")
    folder = tmp_path_factory.mktemp("usage")
    (folder / "sys").mkdir()
    create(
        folder / FILE_NAME,
        make_gpus(2, PRODUCTS["H200"]),
        time.clock_gettime(time.CLOCK_BOOTTIME) - 10,
    )
    with ExitStack() as stack:
        simulation = stack.enter_context(Simulation.open(folder / FILE_NAME))
        simulation.set_load(0, Constant(LOAD_W), at=time.clock_gettime(time.CLOCK_BOOTTIME) - 9)
        listen = f"127.0.0.1:{servers.free_port()}"
        options = (
            "--path.sysfs",
            str(folder / "sys"),
            "--no-collector.rapl",
            "--web.listen-address",
            listen,
        )
        serve = {"env": nvml.environment(simulation.path)}
        (folder / "prometheus").mkdir()
        places = {
            "prometheus": stack.enter_context(
                servers.prometheus(folder / "prometheus", [listen], "1s")
            )
        }
        for number in range(2):
            with daemon.daemon(folder, *options, **serve) as exporter:
                eventually(
                    lambda: exporter.value(m.GPU_ENERGY.name, gpu="0"), "the GPU", exporter.log
                )
                if not number:
                    eventually(
                        lambda: servers.query(places["prometheus"], UNATTRIBUTED),
                        "a scrape",
                        exporter.log,
                    )
                    time.sleep(2)
                    start_s = time.time()
                run(exporter, f"own-{number}", pids=[os.getpid()])
                run(exporter, f"other-{number}", labels={"user": "ada", "model": "tiny"})
        exporter = stack.enter_context(daemon.daemon(folder, *options, **serve))
        eventually(lambda: exporter.value(m.GPU_ENERGY.name, gpu="0"), "the GPU", exporter.log)
        run(exporter, "last", labels={"user": "ada", "model": "tiny"})
        time.sleep(3)
        places |= {"exporter": exporter.url, "history": str(exporter.folder / "history.sqlite")}
        yield {
            (name, by): usage(analyzer, places[name], by, start_s)
            for name in SOURCES
            for by in ("user", "user,model", "kind")
        }


def run(exporter, run_id, **body):
    daemon.begin(exporter, run_id=run_id, gpus=["0"], **body)
    time.sleep(HELD_S)
    daemon.end(exporter, run_id)


def usage(analyzer, place, by, start_s):
    window = (
        "--since",
        f"{start_s:.3f}",
        "--by",
        by,
        "--price",
        "0.5",
        "--format",
        "json",
    )
    completed = analyzer("usage", "--source", place, *window)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@pytest.mark.parametrize("source", SOURCES)
def test_usage_names_the_login_of_a_client_and_the_label(documents, source):
    document = documents[source, "user,model"]
    rows = {(row["user"], row["model"]): row for row in document["groups"]}

    assert rows.keys() == {(getpass.getuser(), "(none)"), ("ada", "tiny")}
    # two and three runs of 3 s at 500 W; requests take some milliseconds
    assert rows[getpass.getuser(), "(none)"]["energy_joules"] == pytest.approx(
        2 * HELD_S * LOAD_W, rel=0.1
    )
    assert rows["ada", "tiny"]["energy_joules"] == pytest.approx(3 * HELD_S * LOAD_W, rel=0.1)
    assert rows["ada", "tiny"]["gpu_hours"] * 3_600 == pytest.approx(3 * HELD_S, rel=0.1)
    assert (
        0
        < rows["ada", "tiny"]["energy_uncertainty_joules"]
        < 0.1 * rows["ada", "tiny"]["energy_joules"]
    )


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("by", ["user", "user,model", "kind"])
def test_usage_over_restarts_adds_up_to_the_counters(documents, source, by):
    document = documents[source, by]
    parts = [*document["groups"], *document["unattributed"], document["remainder"]]

    total_j = document["total"]["energy_joules"]
    assert sum(row["energy_joules"] for row in parts) == pytest.approx(total_j)
    assert sum(row["cost"] for row in parts) == pytest.approx(total_j / 3.6e6 * 0.5)
    assert abs(document["remainder"]["energy_joules"]) < 0.01 * total_j, document["from"]
