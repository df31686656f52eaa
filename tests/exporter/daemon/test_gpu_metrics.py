"""Complete GPU metrics of a scrape, with the real pynvml on a loadable library."""

import time

import pytest

from tests.daemon import begin, daemon, end
from tests.fakes import nvml
from wattline_exporter.sensors.readings import boottime
from wattline_exporter.simulation import (
    FILE_NAME,
    PRODUCTS,
    Constant,
    Simulation,
    create,
    make_gpus,
)

OPTIONS = ("--no-collector.rapl", "--no-collector.host", "--no-collector.hwmon")
GIB = 1 << 30


@pytest.fixture
def node(tmp_path):
    """Yield an H200 and a GPU with a fan and without ECC."""
    path = tmp_path / FILE_NAME
    h200, rtx = make_gpus(2, PRODUCTS["H200"])[0], make_gpus(2, PRODUCTS["RTX4090"])[1]
    create(path, (h200, rtx), boottime())
    with Simulation.open(path) as simulation:
        yield simulation


def serve(tmp_path, node):
    return daemon(tmp_path, *OPTIONS, env=nvml.environment(node.path))


def test_gpu_metrics_of_each_product_are_complete(tmp_path, node):
    with serve(tmp_path, node) as exporter:
        exporter.wait_for_metric(lambda up: up == 1, "wattline_gpu_up", gpu="1")
        metrics = exporter.metrics()

    def of(name, gpu):
        return [
            tuple(v for k, v in sorted(g.items()) if k not in ("gpu", "uuid"))
            for g, _ in metrics[name]
            if g["gpu"] == gpu
        ]

    assert of("wattline_gpu_utilization_ratio", "0") == [
        ("gpu",),
        ("memory",),
        ("encoder",),
        ("decoder",),
    ]
    assert of("wattline_gpu_clock_hertz", "0") == [("sm",), ("memory",), ("graphics",), ("video",)]
    assert of("wattline_gpu_power_limit_watts", "1") == [
        ("enforced",),
        ("requested",),
        ("default",),
        ("min",),
        ("max",),
    ]
    assert of("wattline_gpu_temperature_limit_celsius", "0") == [("margin", "gpu")]
    assert ("slowdown", "gpu") in of("wattline_gpu_temperature_limit_celsius", "1")
    assert of("wattline_gpu_ecc_errors_total", "0") == [("corrected",), ("uncorrected",)]
    assert of("wattline_gpu_ecc_errors_total", "1") == []
    assert (of("wattline_gpu_fan_ratio", "0"), of("wattline_gpu_fan_ratio", "1")) == ([], [()])
    assert ("sw_power_cap",) in of("wattline_gpu_clock_event_seconds_total", "0")
    assert of("wattline_gpu_performance_state", "0") == [()]
    assert ("tx",) in of("wattline_gpu_pcie_bytes_total", "0")


def test_gpu_error_counters_start_at_0_and_survive_a_restart(tmp_path, node):
    node.add_ecc(0, corrected=41, uncorrected=2)  # before the start of the exporter
    with serve(tmp_path, node) as exporter:
        assert exporter.value("wattline_gpu_ecc_errors_total", gpu="0", type="corrected") == 0
        assert (
            exporter.wait_for_metric(
                lambda n: n == 0, "wattline_gpu_xid_errors_total", gpu="0", xid="79"
            )
            == 0
        )
        node.add_ecc(0, corrected=3, uncorrected=0)
        node.raise_xid(0, 79)
        node.raise_xid(0, 79)
        exporter.wait_for_metric(
            lambda n: n == 3, "wattline_gpu_ecc_errors_total", gpu="0", type="corrected"
        )
        exporter.wait_for_metric(
            lambda n: n == 2, "wattline_gpu_xid_errors_total", gpu="0", xid="79"
        )
        assert "XID 79" in exporter.log()
        at = exporter.value("wattline_gpu_xid_timestamp_seconds", gpu="0", xid="79")
        assert 0.0 <= time.time() - at < 60.0
    node.add_ecc(0, corrected=1, uncorrected=0)  # during the downtime
    with serve(tmp_path, node) as exporter:
        exporter.wait_for_metric(
            lambda n: n == 4, "wattline_gpu_ecc_errors_total", gpu="0", type="corrected"
        )
        assert exporter.value("wattline_gpu_xid_errors_total", gpu="0", xid="79") == 2
        assert exporter.value("wattline_gpu_xid_timestamp_seconds", gpu="0", xid="79") == at


def test_gpu_clock_event_seconds_count_time_under_a_power_cap(tmp_path, node):
    def capped_s(holds):
        name = "wattline_gpu_clock_event_seconds_total"
        return exporter.wait_for_metric(holds, name, gpu="0", reason="sw_power_cap")

    with serve(tmp_path, node) as exporter:
        node.set_limit(0, 300.0)
        assert capped_s(lambda seconds: seconds is not None) == 0.0
        begun_s = boottime()
        node.set_load(0, Constant(640.0))
        started_s = boottime()
        for waited_s in (1.5, 2.0):
            time.sleep(waited_s)
            due_s = boottime() - started_s
            seconds = capped_s(lambda seconds, due_s=due_s: seconds >= due_s - 0.2)
            assert seconds <= boottime() - begun_s  # the driver updates the counter every 100 ms


def test_mig_instances_have_memory_and_the_gpu_has_the_energy(tmp_path, node):
    node.set_mig(0, ["3g.71gb", "1g.18gb"])
    large, _ = (instance.uuid for instance in node.gpus[0].instances)
    node.drive_instance(0, 1, 0.3, pid=41, memory_bytes=20 * GIB)
    with serve(tmp_path, node) as exporter:
        exporter.wait_for_metric(bool, "wattline_gpu_utilization_ratio", uuid=large)
        metrics = exporter.metrics()
        run = begin(exporter, gpus=[large])
        end(exporter, run["run_id"])

    of_instances = {
        name
        for name, samples in metrics.items()
        for g, _ in samples
        if g.get("uuid", "").startswith("MIG-")
    }
    assert of_instances == {
        "wattline_gpu_mig_info",
        "wattline_gpu_memory_used_bytes",
        "wattline_gpu_memory_total_bytes",
        "wattline_gpu_utilization_ratio",
    }
    used = {g["uuid"]: v for g, v in metrics["wattline_gpu_memory_used_bytes"]}
    assert used[large] == 20 * GIB
    assert [gpu["uuid"] for gpu in run["gpus"]] == [
        node.gpus[0].uuid
    ]  # the GPU that has the energy


def test_gpu_process_metrics_are_shown_with_the_option(tmp_path, node):
    node.drive(0, 0.4, 1, 3 * GIB)
    with daemon(
        tmp_path,
        *OPTIONS,
        "--collector.processes",
        "--collector.processes.pid",
        env=nvml.environment(node.path),
    ) as exporter:
        memory = exporter.wait_for_metric(
            bool, "wattline_gpu_process_memory_bytes", gpu="0", pid="1"
        )
        share = exporter.wait_for_metric(
            bool, "wattline_gpu_process_utilization_ratio", gpu="0", pid="1"
        )
    with serve(tmp_path, node) as exporter:
        assert "wattline_gpu_process_memory_bytes" not in exporter.metrics()

    assert (memory, share) == (3 * GIB, pytest.approx(0.4, abs=0.05))
