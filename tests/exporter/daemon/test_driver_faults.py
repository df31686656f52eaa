"""Faults of a loadable NVML library during operation, with the real pynvml."""

import time

import pytest

from tests.daemon import begin, daemon, end
from tests.fakes import nvml
from tests.polling import eventually
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Fault,
    Simulation,
    create,
    make_gpus,
)

OPTIONS = ("--no-collector.rapl", "--no-collector.host")


@pytest.fixture
def node(tmp_path):
    """Yield three GPUs behind a libnvidia-ml.so.1."""
    path = tmp_path / FILE_NAME
    create(path, make_gpus(3, PRODUCTS["H200"]), boottime())
    with Simulation.open(path) as simulation:
        yield simulation
        for i in range(3):
            simulation.set_fault(i, Fault.HANG, on=False)


NO_COUNTER, NO_FIELDS, NO_AVERAGE, COMPLETE = range(4)


@pytest.fixture(scope="module")
def limited_node(tmp_path_factory):
    """Yield four GPUs: three without one of the driver's functions, and a complete one."""
    path = tmp_path_factory.mktemp("limited") / FILE_NAME
    create(path, make_gpus(4, PRODUCTS["H200"]), boottime())
    with Simulation.open(path) as simulation:
        for i, fault in enumerate((Fault.NO_COUNTER, Fault.NO_FIELDS, Fault.NO_AVERAGE)):
            simulation.set_fault(i, fault, on=True)
        simulation.set_load(NO_COUNTER, Constant(500.0))
        yield simulation


@pytest.fixture(scope="module")
def limited(tmp_path_factory, limited_node):
    """Yield an exporter on these GPUs, shared by tests that change nothing."""
    with daemon(
        tmp_path_factory.mktemp("shared"), *OPTIONS, env=nvml.environment(limited_node.path)
    ) as exporter:
        yield exporter


@pytest.fixture
def started(tmp_path, node):
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        yield exporter


def ups(exporter):
    return {labels["gpu"]: value for labels, value in exporter.metrics().get("wattline_gpu_up", ())}


def interval_contains_true_energy(simulation, run, i):
    uuid = simulation.gpus[i].uuid
    truth = 78.0 * run["duration_seconds"]
    return (
        abs(run["energy_joules"]["gpu"][uuid] - truth)
        <= run["energy_uncertainty_joules"]["gpu"][uuid]
    )


def test_driver_library_is_read(limited):
    gpu = str(COMPLETE)

    assert ups(limited) == {"0": 1, "1": 1, "2": 1, "3": 1}
    assert limited.value("wattline_gpu_power_limit_watts", gpu=gpu, kind="enforced") == 700
    assert limited.value("wattline_gpu_energy_method_info", gpu=gpu, method="counter") == 1
    assert limited.value("wattline_gpu_power_watts", gpu=gpu) == pytest.approx(78, abs=0.5)
    assert limited.value("wattline_source_up", source="nvml") == 1


def test_hanging_gpu_disappears_and_others_keep_their_rate(node, started):
    run_id = begin(started)["run_id"]
    time.sleep(0.5)
    node.set_fault(1, Fault.HANG, on=True)
    started.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu="1")
    metrics = started.metrics()
    own = [
        labels
        for samples in metrics.values()
        for labels, _ in samples
        if "uuid" in labels and "run_id" not in labels
    ]
    gpu_indices = [labels["gpu"] for labels in own]

    assert gpu_indices.count("1") == 1
    assert ups(started) == {"0": 1, "1": 0, "2": 1}
    node.set_fault(1, Fault.HANG, on=False)
    started.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="1")
    time.sleep(0.5)
    run = end(started, run_id)
    assert run["covered_ratio"]["gpu"][node.gpus[0].uuid] > 0.9
    assert run["covered_ratio"]["gpu"][node.gpus[1].uuid] < 0.9
    assert all(interval_contains_true_energy(node, run, i) for i in range(3))
    assert started.value("wattline_source_restarts_total", source="nvml") == 0


def test_gpu_hanging_at_start_hides_no_other_and_recovers(tmp_path, node):
    node.set_fault(0, Fault.HANG, on=True)
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        assert ups(exporter) == {"1": 1, "2": 1}
        node.set_fault(0, Fault.HANG, on=False)
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="0")


def test_exporter_stops_while_a_gpu_hangs(tmp_path, node):
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        node.set_fault(0, Fault.HANG, on=True)
        time.sleep(1.5)
        assert exporter.stop() == 0


def test_lost_gpu_is_down_and_recovers(node, started):
    before = started.value("wattline_gpu_energy_joules_total", gpu="2")
    node.set_fault(2, Fault.LOST, on=True)
    started.wait_for_metric(lambda up: up == 0, "wattline_gpu_up", gpu="2")

    assert started.value("wattline_gpu_energy_joules_total", gpu="2") is None
    assert "GPU 2 does not answer: GPU is lost" in started.log()
    node.set_fault(2, Fault.LOST, on=False)
    started.wait_for_metric(
        lambda j: j is not None and j >= before, "wattline_gpu_energy_joules_total", gpu="2"
    )
    assert started.value("wattline_gpu_up", gpu="2") == 1


def test_gpu_lost_at_start_is_logged_once(tmp_path, node):
    node.set_fault(2, Fault.LOST, on=True)
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        time.sleep(6.0)
        assert exporter.log().count("GPU 2 cannot be attached") == 1
        assert ups(exporter) == {"0": 1, "1": 1}


def test_driver_loaded_later_is_used(tmp_path, node):
    node.unload_driver()
    with daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path)) as exporter:
        assert exporter.value("wattline_source_up", source="nvml") == 0
        assert exporter.log().count("source=nvml down") == 1
        assert "nvidia-modprobe" in exporter.log()
        assert ups(exporter) == {}
        node.load_driver()
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="0")
        assert exporter.value("wattline_source_up", source="nvml") == 1


def test_missing_driver_does_not_stop_other_sources(tmp_path):
    with daemon(
        tmp_path, "--no-collector.rapl", env={"LD_LIBRARY_PATH": str(tmp_path)}
    ) as exporter:
        assert exporter.value("wattline_source_up", source="nvml") == 0
        eventually(
            lambda: exporter.value("wattline_source_up", source="host") == 1, "host", exporter.log
        )
        run = end(exporter, begin(exporter)["run_id"])
    assert run["gpus"] == []


def test_gpu_without_counter_integrates_power(limited_node, limited):
    assert (
        limited.value("wattline_gpu_energy_method_info", gpu=str(NO_COUNTER), method="integral")
        == 1
    )
    assert (
        limited.value("wattline_gpu_energy_method_info", gpu=str(COMPLETE), method="counter") == 1
    )
    limited.wait_for_metric(
        lambda watts: watts and abs(watts - 500.0) < 0.5, "wattline_gpu_power_watts", gpu="0"
    )
    time.sleep(1.0)  # until the average covers the load alone
    run_id = begin(limited, gpus=[str(NO_COUNTER)])["run_id"]
    time.sleep(2.0)
    run = end(limited, run_id)
    uuid, truth = limited_node.gpus[NO_COUNTER].uuid, 500.0 * run["duration_seconds"]

    assert run["energy_joules"]["gpu"][uuid] == pytest.approx(truth, rel=0.02)
    assert (
        abs(run["energy_joules"]["gpu"][uuid] - truth)
        <= run["energy_uncertainty_joules"]["gpu"][uuid]
    )


def test_driver_without_field_values_uses_older_calls(limited_node, limited):
    assert (
        limited.value("wattline_gpu_energy_method_info", gpu=str(NO_FIELDS), method="counter") == 1
    )
    assert limited.value("wattline_gpu_power_watts", gpu=str(NO_FIELDS)) == pytest.approx(
        78, abs=0.5
    )
    run_id = begin(limited, gpus=[str(NO_FIELDS)])["run_id"]
    time.sleep(1.5)
    run = end(limited, run_id)
    assert interval_contains_true_energy(limited_node, run, NO_FIELDS)


def test_unsupported_readings_are_absent(limited):
    names = {sample.name for sample in limited.samples()}

    assert "wattline_gpu_fan_ratio" not in names
    assert "wattline_cpu_energy_joules_total" not in names
    assert "wattline_emissions_grams_total" not in names


def test_two_exporters_read_the_same_gpus(tmp_path, node):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    env = nvml.environment(node.path)
    with (
        daemon(tmp_path / "a", *OPTIONS, env=env) as one,
        daemon(tmp_path / "b", *OPTIONS, env=env) as other,
    ):
        runs = [(exporter, begin(exporter)["run_id"]) for exporter in (one, other)]
        time.sleep(1.5)
        ended = [end(exporter, run_id) for exporter, run_id in runs]

    assert all(interval_contains_true_energy(node, run, i) for run in ended for i in range(3))


def test_killed_worker_is_replaced(node, started):
    (child,) = started.children()
    child.kill()
    eventually(
        lambda: [c.pid for c in started.children()] not in ([], [child.pid]),
        "a new sampler",
        started.log,
    )
    started.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="0")

    assert started.wait_for_metric(bool, "wattline_source_restarts_total", source="nvml") == 1
