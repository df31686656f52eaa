from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wattline_exporter.sensors.processes.groups import (
    MAX_SERIES,
    GpuProcessGroup,
    ProcessGroup,
    largest_gpu_groups,
    safe_label,
    select_largest,
)
from wattline_exporter.sensors.readings import GpuProcess

GPU, OTHER, MIG = "GPU-a", "GPU-b", "MIG-c"
NAMES = {1: "python3", 2: "python3", 3: "ollama"}


def by_name(pid):
    return ProcessGroup(NAMES.get(pid, "other"))


def test_gpu_groups_add_processes_of_a_name_per_gpu():
    rows = {
        GPU: [GpuProcess(1, 100, 0.25), GpuProcess(2, 200, 0.5), GpuProcess(3, 7, 0.0)],
        OTHER: [GpuProcess(1, 50, 0.1)],
    }
    assert largest_gpu_groups(rows, by_name) == [
        GpuProcessGroup(GPU, GPU, ProcessGroup("python3"), 300, 0.75),
        GpuProcessGroup(GPU, GPU, ProcessGroup("ollama"), 7, 0.0),
        GpuProcessGroup(OTHER, OTHER, ProcessGroup("python3"), 50, 0.1),
    ]


def test_gpu_groups_unknown_value_makes_the_group_unknown():
    rows = {GPU: [GpuProcess(1, None, 0.25), GpuProcess(2, 200, None), GpuProcess(3, None, 0.5)]}
    assert largest_gpu_groups(rows, by_name) == [
        GpuProcessGroup(GPU, GPU, ProcessGroup("python3"), None, None),
        GpuProcessGroup(GPU, GPU, ProcessGroup("ollama"), None, 0.5),
    ]


def test_gpu_groups_of_mig_instance_have_its_uuid():
    rows = {GPU: [GpuProcess(1, 100, None, MIG), GpuProcess(2, 200, None)]}
    assert [
        (group.on, group.uuid, group.memory_bytes) for group in largest_gpu_groups(rows, by_name)
    ] == [
        (GPU, MIG, 100),
        (GPU, GPU, 200),
    ]


def test_gpu_groups_overlapping_utilization_is_at_most_one():
    rows = {GPU: [GpuProcess(1, 1, 0.75), GpuProcess(2, 1, 0.75)]}
    assert largest_gpu_groups(rows, by_name)[0].utilization == 1.0


def test_gpu_groups_of_the_node_are_the_50_largest():
    rows = {f"GPU-{n}": [GpuProcess(pid, pid * 1_000) for pid in range(1, 31)] for n in range(8)}
    groups = largest_gpu_groups(rows, lambda pid: ProcessGroup("python3", str(pid)))
    assert len(groups) == MAX_SERIES
    assert (
        min(group.memory_bytes for group in groups) == 24_000
    )  # 8 GPUs x pids 25 to 30 are 48, and two of pid 24


def test_select_largest_replaces_only_by_clearly_larger():
    sizes = {"a": 100.0, "b": 90.0, "c": 80.0}
    assert select_largest(sizes, set(), 2) == {"a", "b"}
    assert select_largest(sizes, {"a", "c"}, 2) == {"a", "c"}
    assert select_largest({"a": 100.0, "b": 130.0, "c": 80.0}, {"a", "c"}, 2) == {"a", "b"}


def test_select_largest_without_use_keeps_the_selection():
    sizes = dict.fromkeys("abcdef", 0.0)
    largest = select_largest(sizes, {"e", "f"}, 2)
    assert largest == {"e", "f"}


@given(
    st.dictionaries(st.integers(), st.floats(0, 1e12), max_size=200),
    st.sets(st.integers(), max_size=80),
)
def test_select_largest_is_bounded_and_omits_none_above_all(sizes, largest):
    chosen = select_largest(sizes, largest)
    assert len(chosen) == min(len(sizes), MAX_SERIES)
    left = [sizes[key] for key in sizes.keys() - chosen]
    assert not left or max(left) <= max(sizes[key] for key in chosen) * 1.5


def test_safe_label_is_short_and_printable():
    assert safe_label("a\nb\x1b[31m\x00") == "a?b?[31m?"
    assert safe_label("é 漢") == "é 漢"
    assert len(safe_label("x" * 10_000)) == 128
