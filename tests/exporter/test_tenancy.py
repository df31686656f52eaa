from exporter.attribution.device_shares import of_cpu, of_gpu
from exporter.attribution.policy import NO_RUN
from exporter.attribution.procfs import Process
from exporter.model import Device, GpuProcess
from exporter.runs.record import RunRecord

GPU = Device("gpu", "GPU-0")
OTHER = Device("gpu", "GPU-1")
PACKAGE = Device("package", "0")


def run(run_id, *devices, pids=(), **more):
    return RunRecord(
        run_id=run_id,
        workload="test",
        labels={},
        request="{}",
        devices=[f"{device.kind}:{device.id}" for device in devices],
        gpus={},
        discovers=more.pop("discovers", False),
        begin_s=0.0,
        started_at=0.0,
        lease_s=60.0,
        lease_until_s=60.0,
        alive_s=0.0,
        processes=[Process(pid, 1.0) for pid in pids],
        **more,
    )


def test_a_run_loads_a_gpu_by_the_time_its_kernels_ran():
    a, b = run("a", GPU, pids=[1]), run("b", GPU, pids=[2])
    processes = [GpuProcess(1, 100, 0.3), GpuProcess(11, 100, 0.2), GpuProcess(2, 900, 0.1), GpuProcess(9, 100, 0.4)]

    held = of_gpu(GPU, [a, b], processes, {"a": {1, 11}, "b": {2}})
    assert held.loads == {"a": 0.5, "b": 0.1, NO_RUN: 0.4}


def test_where_no_kernel_time_is_told_memory_counts_and_where_that_is_not_either_their_number():
    a = run("a", GPU, pids=[1])

    assert of_gpu(GPU, [a], [GpuProcess(1, 300), GpuProcess(9, 100)], {"a": {1}}).loads == {"a": 300, NO_RUN: 100}
    assert of_gpu(GPU, [a], [GpuProcess(1), GpuProcess(9), GpuProcess(8)], {"a": {1}}).loads == {"a": 1, NO_RUN: 2}


def test_a_run_that_named_no_process_stands_for_those_of_no_other():
    a, b, c = run("a", GPU, pids=[1]), run("b", GPU), run("c", GPU)
    processes = [GpuProcess(1, None, 0.2), GpuProcess(9, None, 0.6)]

    assert of_gpu(GPU, [a, b, c], processes, {"a": {1}}).loads == {"a": 0.2, "b": 0.3, "c": 0.3}


def test_a_run_holds_its_gpus_also_before_its_processes_are_there_and_no_others():
    a = run("a", GPU, pids=[1])

    assert of_gpu(GPU, [a], [], {"a": {1}}).loads == {"a": 0}
    assert of_gpu(OTHER, [a], [GpuProcess(1, None, 0.5)], {"a": {1}}).loads == {NO_RUN: 0.5}


def test_a_run_that_looks_for_its_gpus_holds_those_it_was_seen_on():
    a = run("a", GPU, OTHER, pids=[1], discovers=True, seen_on=["GPU-1"])

    assert of_gpu(GPU, [a], [], {"a": {1}}).loads == {}
    assert of_gpu(OTHER, [a], [], {"a": {1}}).loads == {"a": 0}


def test_a_run_loads_the_cpus_by_its_cpu_time():
    a, b = run("a", PACKAGE, pids=[1]), run("b", PACKAGE, pids=[2])

    held = of_cpu(PACKAGE, [a, b], {"a": 3.0, "b": 1.0}, 10.0, {"a": {1}, "b": {2}})
    assert held.loads == {"a": 3.0, "b": 1.0, NO_RUN: 6.0}


def test_clocks_that_tick_apart_give_no_negative_rest():
    assert of_cpu(PACKAGE, [run("a", PACKAGE, pids=[1])], {"a": 1.01}, 1.0, {"a": {1}}).loads == {"a": 1.01, NO_RUN: 0}
