"""XID events of simulated GPUs, through SimulatedNvml and through pynvml on the test library."""

from __future__ import annotations

import threading

import pynvml
import pytest

from wattline_exporter.sensors.nvml.driver import XidWatch
from wattline_exporter.simulation import Fault


def test_xid_events_after_registration_are_reported_in_order(make_node, read):
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


def test_xid_lost_gpu_does_not_hide_events_of_others(make_node, read):
    node = make_node("H200", count=2)
    uuids = [gpu.uuid for gpu in node.simulation.gpus]
    reader = read(node)
    assert reader.register(0)
    assert reader.register(1)
    node.simulation.set_fault(0, Fault.LOST, on=True)
    assert reader.xid() is None  # the event set is replaced
    node.simulation.raise_xid(1, 48)
    assert reader.xid(10.0) == [uuids[1], 48]

    node.simulation.set_fault(0, Fault.LOST, on=False)
    assert reader.register(0)
    node.simulation.raise_xid(0, 79)
    assert reader.xid(10.0) == [uuids[0], 79]


def test_xid_only_gpu_lost_continues_to_wait(make_node, read):
    node = make_node("H200")
    reader = read(node)
    reader.register(0)
    node.simulation.set_fault(0, Fault.LOST, on=True)

    assert [reader.xid(), reader.xid()] == [None, None]


@pytest.mark.parametrize(
    "error", [{"nvmlDeviceGetSupportedEventTypes": pynvml.NVML_ERROR_NOT_SUPPORTED}, {}]
)
def test_xid_gpu_without_events_is_not_registered(make_node, error):
    replacements = {} if error else {"nvmlDeviceGetSupportedEventTypes": lambda _: 0}
    reader = make_node("H200").reader(errors=error, replacements=replacements)

    assert reader.register(0) is False


def test_xid_hanging_registration_does_not_block_others(make_node):
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
