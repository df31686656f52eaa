"""`analyzer waste` on a history file, Prometheus and VictoriaMetrics with the same nodes."""

import csv
import io
import json
from contextlib import ExitStack

import pytest

from tests import daemon, servers
from tests.analyzer.fleet_nodes import import_to_victoria_metrics, write_prometheus_blocks
from tests.analyzer.node import write_history
from tests.analyzer.waste.nodes import BEGIN_S, Node, Run, State, busy, deep_idle, loaded
from tests.polling import eventually
from wattline.contract.history import Series
from wattline_exporter.simulation import Square

HOUR = 3_600.0
ANN = Run("train-1", 600.0, 600.0 + 2 * HOUR, (0, 1), {"user": "ann"})
FREE, WORKING = [deep_idle(2 * HOUR + 1_200)], [deep_idle(600), busy(2 * HOUR), deep_idle(600)]
WAITING = [deep_idle(600), busy(HOUR), loaded(HOUR), deep_idle(600)]
STUCK = [State(2 * HOUR + 1_200, 110.0, clock=0.9)]
NODE = Node([WORKING, WAITING, STUCK, FREE], [ANN], offset_s=3.2)
JOULES = {"execution_idle": 50 * HOUR, "clocks_stuck": 40 * (2 * HOUR + 1_200)}
WINDOW = ("--since", f"{BEGIN_S:.0f}", "--until", f"{BEGIN_S + NODE.seconds:.0f}")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("waste")
    series = list(NODE.series())
    plain = [
        Series(
            {name: text for name, text in one.labels.items() if name not in ("instance", "job")},
            list(zip(one.t.tolist(), one.value.tolist(), strict=True)),
        )
        for one in series
    ]
    keep = ["--storage.tsdb.retention.time=3000d"]
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    write_prometheus_blocks(folder / "prometheus", series)
    with ExitStack() as stack:
        prometheus = stack.enter_context(servers.prometheus(folder / "prometheus", [], flags=keep))
        victoria = stack.enter_context(
            servers.victoria_metrics(
                folder / "victoria-metrics", [], flags=["-retentionPeriod=3000d"]
            )
        )
        import_to_victoria_metrics(victoria, series)
        yield {
            "history": write_history(folder, plain),
            "prometheus": prometheus,
            "victoria-metrics": victoria,
        }


@pytest.mark.parametrize("place", ["history", "prometheus", "victoria-metrics"])
def test_waste_command_finds_the_true_joules_at_every_source(call, places, place):
    arguments = ("--price", "0.4", "--currency", "EUR", "--format", "json")

    code, out, err = call("waste", "--source", places[place], *WINDOW, *arguments)

    assert code == 0, err
    document = json.loads(out)
    found = {one["class"]: one for one in document["findings"]}
    assert {kind: one["waste_joules"] for kind, one in found.items()} == pytest.approx(
        JOULES, rel=0.02
    )
    assert found["execution_idle"]["holders"][0]["name"] == "train-1"
    assert found["execution_idle"]["cost"] == pytest.approx(50 * HOUR / 3.6e6 * 0.4, rel=0.02)
    assert found["execution_idle"]["emissions_grams"] == pytest.approx(
        50 * HOUR / 3.6e6 * 200, rel=0.02
    )
    assert found["execution_idle"]["gpus"][0]["uuid"] == "GPU-a1"
    assert document["gpu_seconds"] == pytest.approx(4 * NODE.seconds, rel=0.01)
    assert document["missing"] == []


def test_waste_command_prints_table_and_csv(call, places):
    _, table, _ = call(
        "waste", "--source", places["history"], *WINDOW, "--price", "0.4", "--currency", "EUR"
    )
    _, rows, _ = call("waste", "--source", places["history"], *WINDOW, "--format", "csv")

    assert "run train-1 (user ann)" in table
    assert "GPU index" in table
    assert "analyzer report --run-id train-1" in table
    assert "No second of a GPU counts twice" in table
    assert {row["class"] for row in csv.DictReader(io.StringIO(rows))} == set(JOULES)


def test_waste_command_of_clean_window_says_so(call, places):
    until = f"{BEGIN_S + 500:.0f}"

    code, out, _ = call(
        "waste", "--source", places["history"], "--since", f"{BEGIN_S:.0f}", "--until", until
    )

    assert code == 0
    assert "no waste found" in out


def test_waste_csv_without_findings_has_the_same_header(call, places):
    clean = ("--since", f"{BEGIN_S:.0f}", "--until", f"{BEGIN_S + 500:.0f}", "--format", "csv")

    _, full, _ = call("waste", "--source", places["history"], *WINDOW, "--format", "csv")
    code, empty, _ = call("waste", "--source", places["history"], *clean)

    assert code == 0
    assert empty.splitlines() == full.splitlines()[:1]
    assert empty.rstrip().endswith(",command,simulated")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--currency", "EUR"), "--currency has no effect without --price"),
        (("--price", "inf"), "--price: expected a finite number"),
        (("--since", "2030-01-01T00:00:00Z"), "is not before --until now"),
        (("--since", "soon"), "--since"),
        (("--min-duration", "x"), "--min-duration"),
    ],
)
def test_waste_command_refuses_bad_options(call, options, text):
    code, _, err = call("waste", *options)

    assert code == 2
    assert text in err


def test_waste_command_of_unknown_node_names_the_remedy(call, places):
    code, out, err = call("waste", "--source", places["prometheus"], *WINDOW, "--node", "b:9847")

    assert (code, out) == (1, "")
    assert "no GPU of node 'b:9847'" in err


def test_waste_command_finds_an_idle_run_of_a_live_exporter(call, tmp_path):
    """The simulated GPU 0 is held and idle, GPU 1 works without a run."""
    with daemon.daemon(tmp_path, "--simulate", "2xH200") as exporter:
        with exporter.simulation() as simulation:
            simulation.set_load(1, Square(600, 600, 1.0))
        assert (
            exporter.post(
                "/api/v1/runs", {"workload": "notebook", "gpus": ["0"], "run_id": "idle"}
            )[0]
            == 201
        )
        command = (
            "waste",
            "--source",
            exporter.url,
            "--since",
            "1h",
            "--min-duration",
            "15s",
            "--format",
            "json",
        )
        document = {}

        def found():
            nonlocal document
            code, out, _ = call(*command)
            document = json.loads(out) if code == 0 else {}
            return len(document.get("findings", [])) == 2

        eventually(found, "both findings", lambda: f"{document}\n{exporter.log()}", within_s=120)

    assert {one["class"] for one in document["findings"]} == {"held_idle", "unclaimed"}
    (held,) = (one for one in document["findings"] if one["class"] == "held_idle")
    (busy_gpu,) = (one for one in document["findings"] if one["class"] == "unclaimed")
    assert held["command"] == "analyzer report --run-id idle"
    assert held["utilization_ratio"] == 0
    assert busy_gpu["mean_power_watts"] == pytest.approx(600, rel=0.02)
    assert (
        busy_gpu["waste_joules"] is None
    )  # it was never idle, so that its deep-idle power is unknown
    assert document["simulated"] is True
    assert not [line for line in document["missing"] if "deep-idle" not in line]
