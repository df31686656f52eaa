"""Three runs on eight fake GPUs and a powercap tree, reported from every source.

The true energy is known: each GPU's load is a square wave of 72 W and 640 W.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import pytest

from tests import daemon, servers
from tests.fakes import nvml, powercap
from tests.fork_server import ForkServer
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import Simulation, Square, create, make_gpus, parse_spec

SPARSE_S = 15
RUNS_S = (12.0, 10.0, 10.0)
PACKAGE_W = 120.0
TICK_S = 0.02
ANALYZER = ForkServer("wattline_analyzer.cli", "jinja2", "requests", "rich.table", "scipy.stats")


@dataclass(frozen=True)
class Scene:
    """Sources with the measured runs, and their true energy by run and GPU in joules."""

    sources: dict[str, str]
    run_ids: list[str]
    true_j: dict[str, dict[str, float]]
    reports: dict[tuple[str, str], dict[str, Any]]
    packages: CountingPackages


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    state = folder / "gpus.state"
    create(state, make_gpus(*parse_spec("8xH200")), boottime())
    tree = powercap.intel_two_packages(folder / "sys")
    with ExitStack() as stack:
        simulation = stack.enter_context(Simulation.open(state))
        for index in range(8):
            simulation.set_load(index, Square(72, 640, 1.73, phase_s=0.21 * index))
        packages = stack.enter_context(CountingPackages(tree))
        options = ("--path.sysfs", str(folder / "sys"), "--carbon.intensity", "230")
        exporter = stack.enter_context(daemon.daemon(folder, *options, env=nvml.environment(state)))
        sources = {"exporter": exporter.url, "history": str(exporter.folder / "history.sqlite")}
        for name, start in (
            ("prometheus", servers.prometheus),
            ("victoria-metrics", servers.victoria_metrics),
        ):
            for every_s in (1, SPARSE_S):
                place = folder / f"{name}-{every_s}"
                place.mkdir()
                target = exporter.url.removeprefix("http://")
                sources[f"{name} {every_s} s"] = stack.enter_context(
                    start(place, [target], f"{every_s}s")
                )
        time.sleep(SPARSE_S + 1)
        true_j = {}
        for length_s in RUNS_S:
            ended = measured_run(exporter, length_s)
            true_j[ended["run_id"]] = true_energy(simulation, ended)
        run_ids = list(true_j)
        reports = {
            (name, run_id): report(url, run_id)
            for name, url in sources.items()
            for run_id in run_ids
        }
        yield Scene(sources, run_ids, true_j, reports, packages)


class CountingPackages:
    """Context in which both packages use PACKAGE_W in real time; `longest_s`: the longest time
    between two counts.
    """

    longest_s = TICK_S

    def __init__(self, tree: powercap.Powercap) -> None:
        self._tree = tree
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tick_for_ever)

    def _tick_for_ever(self) -> None:
        last_s = time.monotonic()
        while not self._stop.wait(TICK_S):
            now_s = time.monotonic()
            self._tree.tick(PACKAGE_W * (now_s - last_s), "intel-rapl:0", "intel-rapl:1")
            last_s, self.longest_s = now_s, max(self.longest_s, now_s - last_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def measured_run(exporter: daemon.Daemon, length_s: float) -> dict[str, Any]:
    begun = daemon.begin(exporter, "burst", labels={"model": "square-wave"})
    time.sleep(length_s)
    return daemon.end(exporter, begun["run_id"], work={"generated_tokens": 1000, "requests": 10})


def true_energy(simulation: Simulation, run: dict[str, Any]) -> dict[str, float]:
    begin_s = run["started_at"] - (time.time() - boottime())
    return {
        gpu.uuid: simulation.energy_j(gpu.index, begin_s, begin_s + run["duration_seconds"])
        for gpu in simulation.gpus
    }


def report(source: str, run_id: str) -> dict[str, Any]:
    arguments = ("report", "--run-id", run_id, "--source", source, "--format", "json")
    completed = ANALYZER.run(
        ["-c", "from wattline_analyzer.cli import main; main()", *arguments], daemon.environment()
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def gpus(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        device["device"]: device for device in document["devices"] if device["component"] == "gpu"
    }


def test_run_energy_is_equal_from_all_sources(scene: Scene):
    for run_id in scene.run_ids:
        first = scene.reports["exporter", run_id]
        for name in scene.sources:
            document = scene.reports[name, run_id]
            assert document["duration_seconds"] == pytest.approx(
                first["duration_seconds"], rel=1e-9
            )
            for component in ("gpu", "cpu"):
                for field in ("energy_joules", "energy_uncertainty_joules"):
                    expected = first["energy"][component][field]
                    assert document["energy"][component][field] == pytest.approx(
                        expected, rel=1e-9
                    ), name
            for uuid, device in gpus(document).items():
                assert device["energy_joules"] == pytest.approx(
                    gpus(first)[uuid]["energy_joules"], rel=1e-9
                ), name


def test_run_energy_interval_covers_the_true_value(scene: Scene):
    errors, outside = [], 0
    for run_id in scene.run_ids:
        document = scene.reports["exporter", run_id]
        true_j = scene.true_j[run_id]
        total = document["energy"]["gpu"]
        total_error_j = abs(total["energy_joules"] - sum(true_j.values()))

        assert total_error_j <= 0.0015 * sum(true_j.values())
        assert total_error_j <= total["energy_uncertainty_joules"]

        for uuid, device in gpus(document).items():
            error_j = abs(device["energy_joules"] - true_j[uuid])
            errors.append(error_j / true_j[uuid])
            outside += error_j > device["energy_uncertainty_joules"]
    assert len(errors) == 8 * len(RUNS_S)
    assert sorted(errors)[int(0.95 * len(errors)) - 1] <= 0.004
    assert outside <= 0.05 * len(errors) + 1


@pytest.mark.parametrize("name", ["prometheus 1 s", "victoria-metrics 1 s", "exporter", "history"])
def test_raw_sample_energy_bound_covers_the_true_value(scene: Scene, name: str):
    for run_id in scene.run_ids:
        for uuid, device in gpus(scene.reports[name, run_id]).items():
            low_j, high_j = (
                device["raw_samples_energy_low_joules"],
                device["raw_samples_energy_high_joules"],
            )

            assert low_j <= scene.true_j[run_id][uuid] <= high_j
            assert high_j - low_j < 0.5 * scene.true_j[run_id][uuid]


def test_cpu_energy_equals_the_powercap_tree(scene: Scene):
    for run_id in scene.run_ids:
        document = scene.reports["prometheus 1 s", run_id]
        packages = [device for device in document["devices"] if device["component"] == "cpu"]

        assert len(packages) == 2
        for package in packages:
            expected_j = PACKAGE_W * document["duration_seconds"]
            late_s = 8 * TICK_S + 2 * scene.packages.longest_s  # at both ends
            assert package["energy_joules"] == pytest.approx(expected_j, abs=PACKAGE_W * late_s)


def test_emissions_are_energy_times_intensity(scene: Scene):
    for name in scene.sources:
        document = scene.reports[name, scene.run_ids[0]]
        emissions_g = {
            e["component"]: e["emissions_grams"]
            for e in document["emissions"]
            if e["component"] in ("gpu", "cpu")
        }

        for component, total_g in emissions_g.items():
            assert total_g == pytest.approx(
                document["energy"][component]["energy_joules"] / 3.6e6 * 230, rel=1e-9
            )
        assert set(emissions_g) == {"gpu", "cpu"}


def test_energy_per_token_is_ratio_of_totals(scene: Scene):
    document = scene.reports["victoria-metrics 15 s", scene.run_ids[0]]
    tokens = document["work"]["generated_tokens"]

    assert tokens["amount"] == 1000
    assert tokens["energy_per_unit_joules"] == pytest.approx(
        document["energy"]["gpu"]["energy_joules"] / 1000, rel=1e-9
    )


def test_runs_are_fully_covered(scene: Scene):
    for document in scene.reports.values():
        assert all(
            device["covered_ratio"] == pytest.approx(1.0, abs=0.02)
            for device in document["devices"]
        )
