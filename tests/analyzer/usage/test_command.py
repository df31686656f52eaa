"""`analyzer usage` on nodes of known energy, from Prometheus, VictoriaMetrics and a history
file.
"""

import csv
import dataclasses
import io
import json

import pytest

from tests.analyzer.fleet_nodes import HALF_J
from tests.analyzer.small_fleet import (
    BEGIN_S,
    END_S,
    FULL_S,
    NODES,
    RUN_W,
    SCRAPE_S,
    fleet_series,
    write_samples,
)
from tests.analyzer.usage.usage_rows import by_key, parts_of

KWH_J = 3.6e6
SOURCES = ("prometheus", "victoria-metrics", "history")


@pytest.mark.parametrize("source", SOURCES)
def test_usage_by_user_has_energy_hours_cost_and_work(usage, source):
    document = usage(source, "user", "--price", "0.31", "--currency", "EUR")
    users = by_key(document, "user")

    # u3 and u4 share one GPU for 500 s of 1,000 s each: 500 s + 500 s / 2
    assert users["u3"]["energy_joules"] == pytest.approx(RUN_W * 750, rel=1e-9)
    assert users["u3"]["gpu_hours"] == pytest.approx(750 / 3_600, abs=SCRAPE_S / 3_600)
    # u2: 900 s on one GPU of each of two nodes
    assert users["u2"]["energy_joules"] == pytest.approx(2 * RUN_W * 900, rel=1e-9)
    assert users["u2"]["gpu_hours"] == pytest.approx(2 * 900 / 3_600)
    assert users["u2"]["cost"] == pytest.approx(2 * RUN_W * 900 / KWH_J * 0.31)
    assert users["u2"]["runs"] == 1
    assert users["u2"]["work"]["generated_tokens"]["amount"] == 45_000
    assert users["u2"]["work"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(
        600 / 50
    )
    # the run has 3 devices on each of two nodes, whose errors are independent
    assert users["u2"]["energy_uncertainty_joules"] == pytest.approx(HALF_J * 6)
    assert (document["currency"], document["from"]) == ("EUR", "owner counters")


@pytest.mark.parametrize("source", SOURCES)
def test_usage_run_that_started_earlier_counts_from_the_window_on(usage, source):
    """The run of u1 on node a takes two GPUs from an hour before the window to 4,200 s after its
    start.
    """
    long_w = RUN_W + 300

    (runs, owners) = (usage(source, by) for by in ("workload,model", "user,workload"))

    for document in (runs, owners):
        (found,) = (row for row in document["groups"] if row["workload"] == "train")
        assert found["energy_joules"] == pytest.approx(long_w * 4_200, abs=1.01 * long_w * SCRAPE_S)
        assert found["gpu_hours"] == pytest.approx(2 * 4_200 / 3_600, abs=2.02 * SCRAPE_S / 3_600)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(
    "by", ["user", "model,user", "namespace", "workload,node", "node,gpu_model"]
)
def test_usage_rows_add_up_to_the_counters_of_the_devices(usage, source, by):
    document = usage(source, by)

    total = document["total"]
    assert sum(parts_of(document, "energy_joules")) == pytest.approx(
        total["energy_joules"], rel=1e-12
    )
    assert abs(document["remainder"]["energy_joules"]) < 5e-4 * total["energy_joules"]
    assert sum(
        row["emissions_grams"].get("average", 0)
        for row in [document["runs"], *document["unattributed"]]
    ) + (document["remainder"]["emissions_grams"]["average"]) == pytest.approx(
        total["emissions_grams"]["average"]
    )


def test_usage_has_same_rows_from_all_sources(usage):
    documents = [usage(source, "user,workload") for source in ("prometheus", "history")]

    prometheus, history = (
        {
            (row["user"], row["workload"]): (row["energy_joules"], row["gpu_hours"])
            for row in one["groups"]
        }
        for one in documents
    )
    assert prometheus.keys() == history.keys()
    for keys, figures in prometheus.items():
        assert figures == pytest.approx(history[keys]), keys


def test_usage_names_nodes_without_samples_at_the_edges(call, sources):
    code, stdout, _ = call(
        "usage", "--source", sources["history"], "--since", BEGIN_S, "--until", END_S
    )

    assert code == 0
    assert (
        "no samples at the start of the window: new:9847 counts from 10:50:11; rows with ≥ lack "
        "what was used before" in " ".join(stdout.split())
    )
    assert (
        "no samples at the end of the window from gone:9847: energy after the last sample is "
        "missing" in stdout
    )


@pytest.mark.parametrize("source", SOURCES)
def test_usage_runs_beyond_the_limits_of_an_exporter_are_other_by_label(usage, source):
    """A Slurm job of eve took the GPU, CPU and DRAM of a node for 300 s; its run has no series but
    its energy.
    """
    owners, runs = (
        usage(source, by, since=FULL_S, until=FULL_S + 900) for by in ("user,kind", "model")
    )

    (eve,), (other,) = owners["groups"], runs["groups"]
    assert (eve["user"], eve["kind"], other["model"]) == ("eve", "slurm", "(other)")
    # the counters of a run that appear between two scrapes start with the first one
    assert eve["energy_joules"] == pytest.approx(RUN_W * 300)
    assert other["energy_joules"] == pytest.approx(RUN_W * 300, abs=1.01 * RUN_W * SCRAPE_S)
    for document in (owners, runs):
        assert sum(parts_of(document, "energy_joules")) == pytest.approx(
            document["total"]["energy_joules"]
        )


def test_usage_carbon_replaces_the_emissions_of_the_nodes(usage):
    document = usage("history", "user", "--carbon", "100")

    assert by_key(document, "user")["u2"]["emissions_grams"] == {
        "given": pytest.approx(2 * RUN_W * 900 / KWH_J * 100)
    }
    total = document["total"]
    assert total["emissions_grams"]["given"] == pytest.approx(total["energy_joules"] / KWH_J * 100)


def test_usage_from_series_of_runs_names_late_emissions(call, sources):
    """The emissions of a running run are exported without its last seconds, those of the owners up
    to now.
    """
    window = ("--source", sources["history"], "--since", BEGIN_S, "--until", END_S)

    texts = {
        (by, *more): call("usage", "--by", by, *window, *more)[1]
        for by, *more in (("model",), ("user",), ("model", "--carbon", "100"))
    }

    assert [by for by, text in texts.items() if "lack the last 6 s" in text] == [("model",)]


def test_usage_json_has_the_notes_of_the_table(call, sources):
    window = (
        "--source",
        sources["history"],
        "--since",
        BEGIN_S,
        "--until",
        END_S,
        "--by",
        "model",
        "--price",
        "0.3",
    )

    _, table, _ = call("usage", *window)
    _, text, _ = call("usage", *window, "--format", "json")

    notes = json.loads(text)["notes"]
    assert any("lack the last 6 s" in note for note in notes)
    assert any(note.startswith("cost: 0.3 per kWh") for note in notes)
    shown = " ".join(table.split())
    assert [note for note in notes if note not in shown] == []


def test_usage_csv_has_a_row_per_part_and_top_groups(call, sources):
    window = (
        "--source",
        sources["history"],
        "--since",
        BEGIN_S,
        "--until",
        END_S,
        "--by",
        "user,model",
    )
    _, every, _ = call("usage", *window, "--format", "csv")
    _, top, _ = call("usage", *window, "--format", "csv", "--top", "2")

    rows = list(csv.DictReader(io.StringIO(every)))
    assert [row["row"] for row in rows] == [
        *6 * ["group"],
        "runs",
        "unattributed",
        "remainder",
        "total",
    ]
    assert [row["user"] for row in csv.DictReader(io.StringIO(top))][:3] == ["u1", "u1", "(runs)"]
    energies_j = [float(row["energy_joules"]) for row in rows]
    assert energies_j[6] + energies_j[7] + energies_j[8] == pytest.approx(energies_j[9])


def test_usage_table_adds_up_as_printed(call, sources):
    _, stdout, _ = call(
        *(
            "usage",
            "--source",
            sources["history"],
            "--since",
            BEGIN_S,
            "--until",
            END_S,
            "--by",
            "user",
        ),
        *("--price", "0.31", "--currency", "EUR"),
    )

    texts = stdout.replace("≥ ", "").splitlines()
    lines = {line.split()[0]: line for line in texts if line.strip()}
    kwh = {
        name: float(lines[name].split()[2])
        for name in ("u1", "u2", "u3", "u4", "(none)", "(runs)", "(total)")
    }
    assert sum(kwh[name] for name in ("u1", "u2", "u3", "u4", "(none)")) == pytest.approx(
        kwh["(runs)"], abs=3e-5
    )
    assert lines["user"].split()[:3] == ["user", "Runs", "kWh"]
    assert "cost: 0.31 EUR per kWh of the devices, without PUE" in stdout
    assert len(NODES) == 5
    assert "all devices of 5 nodes: GPU " in stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--currency", "EUR"), "--currency has no effect without --price"),
        (("--price", "inf"), "--price: expected a finite number"),
        (("--since", "soon"), "--since: expected a duration above 0"),
        (("--by", "user;model"), "--by: expected labels of runs"),
    ],
)
def test_usage_invalid_option_is_one_line(analyzer, arguments, expected):
    completed = analyzer("usage", "--source", "/nowhere", *arguments)

    assert completed.returncode == 2
    assert expected in completed.stderr
    assert len(completed.stderr.splitlines()) == 1


def test_usage_of_window_without_energy_of_devices_is_no_traceback(call, tmp_path):
    """The devices' counters rise only after the window, in which the series of a run show
    energy.
    """
    late = [
        dataclasses.replace(one, value=0 * one.value)
        if one.labels["__name__"]
        in ("wattline_gpu_energy_joules_total", "wattline_cpu_energy_joules_total")
        else one
        for one in fleet_series()
    ]
    history = str(write_samples(tmp_path, late))

    code, stdout, stderr = call(
        "usage", "--by", "model", "--source", history, "--since", BEGIN_S, "--until", END_S
    )

    assert code == 0, stderr
    assert "J of 0 J of the devices' energy" in stdout
