"""MIG instances of simulated GPUs, through SimulatedNvml and through pynvml on the test library."""

from __future__ import annotations

import pytest

GIB = 1 << 30


def test_mig_instances_have_memory_and_utilization_but_no_power(make_node, read):
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
        f"utilization_ratio {large} gpu": pytest.approx(
            0.3 * 7 / 3
        ),  # of its three slices of seven
        f"mig_info {small} {parent} 1g.18gb 2 0": 1,
        f"memory_used_bytes {small}": 0,
        f"memory_total_bytes {small}": 18 * GIB,
        f"utilization_ratio {small} gpu": 0,
    }
    assert rows["power_limit_watts enforced"] == 700
    assert rows["memory_used_bytes"] == 20 * GIB
    assert not {"utilization_ratio gpu", "utilization_ratio encoder"} & rows.keys()
    assert reader.instances(0) == [large, small]


def test_mig_a100_instances_have_no_utilization(make_node, read):
    node = make_node("A100")
    node.simulation.set_mig(0, ["3g.40gb"])
    reader = read(node)
    reader.readings(0)
    node.later(1)

    rows = reader.readings(0)

    assert len([key for key in rows if "MIG-" in key]) == 3


def test_mig_changed_instances_are_followed_and_mig_can_be_off(make_node, read):
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


def test_mig_removed_instance_is_left_out_and_rescanned(make_node, read):
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


def test_mig_processes_have_their_instance_and_no_utilization(make_node, read):
    node = make_node("H200")
    node.simulation.set_mig(0, ["3g.71gb", "1g.18gb"])
    node.simulation.drive_instance(0, 2, 0.1, pid=42, memory_bytes=5 * GIB)
    node.simulation.drive_instance(0, 1, 0.3, pid=41, memory_bytes=20 * GIB)
    large, small = (instance.uuid for instance in node.simulation.gpus[0].instances)
    reader = read(node)

    assert reader.processes(0) == [[41, 20 * GIB, None, large], [42, 5 * GIB, None, small]]
    assert reader.pids(0) == [41, 42]
