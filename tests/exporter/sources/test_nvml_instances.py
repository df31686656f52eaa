"""Processes, MIG instances, XIDs, and which GPUs there are: through SimulatedNvml and through the real pynvml."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pynvml
import pytest

from exporter.simulation import Constant, Fault
from exporter.sources.nvml import Nvml, XidWatch, bound_gpus
from exporter.sources.nvml.processes import mean_shares

GIB = 1 << 30


def test_processes_have_their_memory_and_the_share_of_time_in_which_they_ran(make_node, read):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=3 * GIB, at=4_900.0)
    node.simulation.drive(0, 0.0, pid=42, memory_bytes=GIB, at=4_900.0)
    reader = read(node)
    reader.processes(0)
    node.later(5)

    # the newest sample is up to 0.1 s old, and the process ran at 50 % up to there
    assert reader.processes(0) == [[41, 3 * GIB, pytest.approx(0.5), ""], [42, GIB, 0.0, ""]]
    assert reader.pids(0) == [41, 42]


def test_processes_that_want_more_than_the_gpu_share_it(make_node, read):
    node = make_node("H200")
    for pid in (41, 42):
        node.simulation.drive(0, 1.0, pid=pid, at=4_900.0)
    reader = read(node)
    reader.processes(0)
    node.later(5)

    assert [share for _, _, share, _ in reader.processes(0)] == [pytest.approx(0.5), pytest.approx(0.5)]


def test_where_the_card_tells_no_utilization_of_processes_it_is_none(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=GIB, at=4_900.0)
    reader = node.reader(refusals={"nvmlDeviceGetProcessUtilization": pynvml.NVML_ERROR_NOT_SUPPORTED})

    assert reader.processes(0) == [[41, GIB, None, ""]]


def _and_one_that_draws(listed):
    return [*listed, SimpleNamespace(pid=41, usedGpuMemory=2 * GIB), SimpleNamespace(pid=43, usedGpuMemory=None)]


def test_who_computes_and_draws_is_one_process_and_memory_that_is_not_told_is_none(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, memory_bytes=3 * GIB, at=4_900.0)
    reader = node.reader(changes={"nvmlDeviceGetGraphicsRunningProcesses": _and_one_that_draws})

    assert [process[:2] for process in reader.processes(0)] == [[41, 3 * GIB], [43, None]]


def _sample(pid, at_us, percent):
    return SimpleNamespace(pid=pid, timeStamp=at_us, smUtil=percent)


def test_each_sample_stands_for_the_time_since_the_one_before_it():
    samples = [_sample(41, 3_000, 100), _sample(41, 1_000, 40), _sample(42, 4_000, 25), _sample(43, 1_000, 80)]

    shares = mean_shares(samples, since_us=0, until_us=4_000)

    # 41: 1 ms at 40 %, 2 ms at 100 %, none after; 42: all of the time at 25 %; 43: a quarter of it at 80 %
    assert shares == {41: pytest.approx(2.4 / 4), 42: pytest.approx(0.25), 43: pytest.approx(0.2)}


def test_the_clock_of_the_driver_may_be_set_back_between_two_looks(make_node):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, at=4_900.0)
    reader = node.reader()
    reader.processes(0)
    node.simulation.set_clock(4_950.0)
    reader.processes(0)
    node.later(5)

    assert reader.processes(0)[0][2] == pytest.approx(0.5)


def test_mig_instances_have_their_own_memory_and_utilization_and_no_power(make_node, read):
    node = make_node("H200")
    node.simulation.set_mig(0, ["3g.71gb", "1g.18gb"])
    node.simulation.drive_instance(0, 1, 0.3, pid=41, memory_bytes=20 * GIB)
    reader = read(node)
    reader.readings(0)
    node.later(1)
    large, small = (instance.uuid for instance in node.simulation.gpus[0].instances)
    parent = node.simulation.gpus[0].uuid

    rows = reader.readings(0)

    assert {key: value for key, value in rows.items() if "MIG-" in key} == {
        f"mig_info {large} {parent} 3g.71gb 1 0": 1,
        f"memory_used_bytes {large}": 20 * GIB,
        f"memory_total_bytes {large}": 71 * GIB,
        f"utilization_ratio {large} gpu": pytest.approx(0.3 * 7 / 3),  # of its three slices of seven
        f"mig_info {small} {parent} 1g.18gb 2 0": 1,
        f"memory_used_bytes {small}": 0,
        f"memory_total_bytes {small}": 18 * GIB,
        f"utilization_ratio {small} gpu": 0,
    }
    assert rows["power_limit_watts enforced"] == 700
    assert rows["memory_used_bytes"] == 20 * GIB
    assert not {"utilization_ratio gpu", "utilization_ratio encoder"} & rows.keys()
    assert reader.instances(0) == [large, small]


def test_an_a100_has_instances_without_utilization(make_node, read):
    node = make_node("A100")
    node.simulation.set_mig(0, ["3g.40gb"])
    reader = read(node)
    reader.readings(0)
    node.later(1)

    rows = reader.readings(0)

    assert len([key for key in rows if "MIG-" in key]) == 3


def test_instances_come_and_go_and_with_mig_off_the_card_tells_its_own_utilization(make_node, read):
    node = make_node("H200")
    node.simulation.drive(0, 0.5, pid=41, at=4_900.0)
    reader = read(node)
    assert reader.readings(0)["utilization_ratio gpu"] == 0.5
    node.simulation.set_mig(0, ["1g.18gb"])
    node.later(10)
    reader.readings(0)
    (first,) = reader.instances(0)
    node.simulation.set_mig(0, ["2g.35gb", "1g.18gb"])
    node.later(10)
    assert not [key for key in reader.readings(0) if first in key]
    assert len(reader.instances(0)) == 2

    node.simulation.set_mig(0, None)
    node.later(10)

    assert reader.readings(0)["utilization_ratio gpu"] == 0.5
    assert reader.instances(0) == []


def test_an_instance_that_goes_between_two_looks_is_left_out_and_looked_for_again(make_node, read):
    node = make_node("H200")
    node.simulation.set_mig(0, ["1g.18gb", "1g.18gb"])
    reader = read(node)
    reader.readings(0)
    node.simulation.set_mig(0, ["1g.18gb"])
    node.later(1)

    assert len([key for key in reader.readings(0) if key.startswith("mig_info")]) == 1
    node.later(1)
    reader.readings(0)
    assert len(reader.instances(0)) == 1


def test_processes_on_a_mig_card_are_told_by_instance_and_without_utilization(make_node, read):
    node = make_node("H200")
    node.simulation.set_mig(0, ["3g.71gb", "1g.18gb"])
    node.simulation.drive_instance(0, 2, 0.1, pid=42, memory_bytes=5 * GIB)
    node.simulation.drive_instance(0, 1, 0.3, pid=41, memory_bytes=20 * GIB)
    large, small = (instance.uuid for instance in node.simulation.gpus[0].instances)
    reader = read(node)

    assert reader.processes(0) == [[41, 20 * GIB, None, large], [42, 5 * GIB, None, small]]
    assert reader.pids(0) == [41, 42]


def test_three_xids_are_reported_once_each_in_order_and_those_from_before_are_not(make_node, read):
    node = make_node("H200", count=2)
    uuids = [gpu.uuid for gpu in node.simulation.gpus]
    node.simulation.raise_xid(0, 13)
    reader = read(node)
    assert reader.xid() is None
    assert reader.register(0)
    assert reader.register(1)
    for gpu, xid in ((0, 31), (0, 48), (1, 63)):
        node.simulation.raise_xid(gpu, xid)

    assert [reader.xid(10.0) for _ in range(3)] == [[uuids[0], 31], [uuids[0], 48], [uuids[1], 63]]
    assert reader.xid() is None


def test_a_lost_card_does_not_hide_the_xids_of_the_others_and_is_watched_again_when_it_is_back(make_node, read):
    node = make_node("H200", count=2)
    uuids = [gpu.uuid for gpu in node.simulation.gpus]
    reader = read(node)
    assert reader.register(0)
    assert reader.register(1)
    node.simulation.set_fault(0, Fault.LOST, on=True)
    assert reader.xid() is None  # the set is made anew
    node.simulation.raise_xid(1, 48)
    assert reader.xid(10.0) == [uuids[1], 48]

    node.simulation.set_fault(0, Fault.LOST, on=False)
    assert reader.register(0)
    node.simulation.raise_xid(0, 79)
    assert reader.xid(10.0) == [uuids[0], 79]


def test_a_watch_whose_only_card_is_lost_waits_on(make_node, read):
    node = make_node("H200")
    reader = read(node)
    reader.register(0)
    node.simulation.set_fault(0, Fault.LOST, on=True)

    assert [reader.xid(), reader.xid()] == [None, None]


@pytest.mark.parametrize("refusal", [{"nvmlDeviceGetSupportedEventTypes": pynvml.NVML_ERROR_NOT_SUPPORTED}, {}])
def test_a_card_without_xid_events_is_passed_over(make_node, refusal):
    changes = {} if refusal else {"nvmlDeviceGetSupportedEventTypes": lambda _: 0}
    reader = make_node("H200").reader(refusals=refusal, changes=changes)

    assert reader.register(0) is False


def test_the_gpus_of_the_driver_are_seen_from_outside_and_named_as_nvml_names_them(tmp_path):
    for name in ("0000:18:00.0", "0000:af:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / name).mkdir(parents=True)

    assert bound_gpus(tmp_path) == {"00000000:18:00.0", "00000000:AF:00.0"}
    (tmp_path / "proc/driver/nvidia/gpus/0000:af:00.0").rmdir()
    assert bound_gpus(tmp_path) == {"00000000:18:00.0"}


def test_where_proc_does_not_tell_the_pci_bus_does(tmp_path):
    for name in ("0000:18:00.0", "bind", "module", "new_id"):
        (tmp_path / "sys/bus/pci/drivers/nvidia" / name).mkdir(parents=True)

    assert bound_gpus(tmp_path) == {"00000000:18:00.0"}
    assert bound_gpus(tmp_path / "elsewhere") == frozenset()


def test_a_gpu_that_was_bound_elsewhere_is_missed_from_outside_and_by_the_next_who_initializes(make_node):
    node = make_node("H200", count=3)
    nvml = Nvml(node.api())
    nvml.open()
    node.simulation.set_fault(1, Fault.UNBOUND, on=True)

    assert nvml.count() == 3
    assert nvml.bound() == {node.simulation.gpus[0].pci_bus_id, node.simulation.gpus[2].pci_bus_id}
    nvml.open()
    assert [nvml.gpu(i).info.uuid for i in range(nvml.count())] == [node.simulation.gpus[i].uuid for i in (0, 2)]


def test_the_whole_of_a_second_is_right_beside_a_neighbour_that_is_lost(make_node, read):
    node = make_node("H200", count=2)
    node.simulation.set_load(1, Constant(700), at=4_900.0)
    reader = read(node)
    node.simulation.set_fault(0, Fault.LOST, on=True)

    assert reader.readings(1)["utilization_ratio gpu"] == 1.0


def test_a_card_that_hangs_while_it_is_registered_holds_up_no_other(make_node):
    node = make_node("H200", count=2)
    reader = node.reader()
    handles = [reader.gpu(i).handle for i in (0, 1)]
    watch = XidWatch(reader.nvml.api)
    assert watch.register(handles[1])
    node.simulation.set_fault(0, Fault.HANG, on=True)
    hanging = threading.Thread(target=watch.register, args=(handles[0],))
    hanging.start()
    node.simulation.raise_xid(1, 48)

    assert watch.register(handles[1])
    node.simulation.raise_xid(1, 63)
    assert watch.wait(10.0) == (node.simulation.gpus[1].uuid, 63)
    node.simulation.set_fault(0, Fault.HANG, on=False)
    hanging.join()
    node.simulation.raise_xid(0, 79)
    assert watch.wait(10.0) == (node.simulation.gpus[0].uuid, 79)
