from wattline_exporter.attribution.device_loads import NO_RUN, cpu_loads, gpu_loads
from wattline_exporter.sensors.readings import GpuProcess


def test_gpu_loads_are_the_kernel_times_of_each_runs_processes():
    processes = [
        GpuProcess(1, 100, 0.3),
        GpuProcess(11, 100, 0.2),
        GpuProcess(2, 900, 0.1),
        GpuProcess(9, 100, 0.4),
    ]

    loads = gpu_loads(["a", "b"], processes, {"a": {1, 11}, "b": {2}})
    assert loads.loads == {"a": 0.5, "b": 0.1, NO_RUN: 0.4}


def test_gpu_loads_without_kernel_time_use_memory_or_process_counts():
    pids = {"a": {1}}

    assert gpu_loads(["a"], [GpuProcess(1, 300), GpuProcess(9, 100)], pids).loads == {
        "a": 300,
        NO_RUN: 100,
    }
    assert gpu_loads(["a"], [GpuProcess(1), GpuProcess(9), GpuProcess(8)], pids).loads == {
        "a": 1,
        NO_RUN: 2,
    }


def test_gpu_loads_of_no_run_go_to_the_runs_without_processes_equally():
    processes = [GpuProcess(1, None, 0.2), GpuProcess(9, None, 0.6)]

    assert gpu_loads(["a", "b", "c"], processes, {"a": {1}}).loads == {"a": 0.2, "b": 0.3, "c": 0.3}


def test_gpu_loads_include_holders_without_processes_and_no_other_run():
    assert gpu_loads(["a"], [], {"a": {1}}).loads == {"a": 0}
    assert gpu_loads([], [GpuProcess(1, None, 0.5)], {"a": {1}}).loads == {NO_RUN: 0.5}


def test_cpu_loads_are_the_cpu_times_and_the_rest_of_the_node():
    loads = cpu_loads(["a", "b"], {"a": 3.0, "b": 1.0}, 10.0, {"a": {1}, "b": {2}})
    assert loads.loads == {"a": 3.0, "b": 1.0, NO_RUN: 6.0}


def test_cpu_loads_beyond_the_nodes_cpu_time_leave_no_negative_rest():
    assert cpu_loads(["a"], {"a": 1.01}, 1.0, {"a": {1}}).loads == {"a": 1.01, NO_RUN: 0}
