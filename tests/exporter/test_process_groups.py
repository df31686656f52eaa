from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exporter.model import GpuProcess
from exporter.sources.processes.groups import MOST_SERIES, GpuGroup, Group, label, largest, largest_gpu_groups

GPU, OTHER, MIG = "GPU-a", "GPU-b", "MIG-c"
NAMES = {1: "python3", 2: "python3", 3: "ollama"}


def by_name(pid):
    return Group(NAMES.get(pid, "other"))


def test_the_processes_of_a_name_are_added_on_each_gpu():
    rows = {
        GPU: [GpuProcess(1, 100, 0.25), GpuProcess(2, 200, 0.5), GpuProcess(3, 7, 0.0)],
        OTHER: [GpuProcess(1, 50, 0.1)],
    }
    assert largest_gpu_groups(rows, by_name) == [
        GpuGroup(GPU, GPU, Group("python3"), 300, 0.75),
        GpuGroup(GPU, GPU, Group("ollama"), 7, 0.0),
        GpuGroup(OTHER, OTHER, Group("python3"), 50, 0.1),
    ]


def test_what_the_card_does_not_tell_of_one_is_not_known_of_the_group():
    rows = {GPU: [GpuProcess(1, None, 0.25), GpuProcess(2, 200, None), GpuProcess(3, None, 0.5)]}
    assert largest_gpu_groups(rows, by_name) == [
        GpuGroup(GPU, GPU, Group("python3"), None, None),
        GpuGroup(GPU, GPU, Group("ollama"), None, 0.5),
    ]


def test_the_processes_of_a_mig_instance_are_told_of_the_instance():
    rows = {GPU: [GpuProcess(1, 100, None, MIG), GpuProcess(2, 200, None)]}
    assert [(group.on, group.uuid, group.memory_bytes) for group in largest_gpu_groups(rows, by_name)] == [
        (GPU, MIG, 100),
        (GPU, GPU, 200),
    ]


def test_shares_of_time_that_overlap_are_no_more_than_all_of_it():
    rows = {GPU: [GpuProcess(1, 1, 0.75), GpuProcess(2, 1, 0.75)]}
    assert largest_gpu_groups(rows, by_name)[0].utilization == 1.0


def test_of_the_node_the_50_largest_are_left_whatever_the_number_of_gpus():
    rows = {f"GPU-{n}": [GpuProcess(pid, pid * 1_000) for pid in range(1, 31)] for n in range(8)}
    found = largest_gpu_groups(rows, lambda pid: Group("python3", str(pid)))
    assert len(found) == MOST_SERIES
    assert min(group.memory_bytes for group in found) == 24_000  # 8 GPUs x pids 25 to 30 are 48, and two of pid 24


def test_one_that_is_shown_gives_way_only_to_a_clearly_larger_one():
    sizes = {"a": 100.0, "b": 90.0, "c": 80.0}
    assert largest(sizes, set(), 2) == {"a", "b"}
    assert largest(sizes, {"a", "c"}, 2) == {"a", "c"}
    assert largest({"a": 100.0, "b": 130.0, "c": 80.0}, {"a", "c"}, 2) == {"a", "b"}


def test_of_those_that_use_nothing_the_same_stay():
    sizes = dict.fromkeys("abcdef", 0.0)
    shown = largest(sizes, {"e", "f"}, 2)
    assert shown == {"e", "f"}


@given(st.dictionaries(st.integers(), st.floats(0, 1e12), max_size=200), st.sets(st.integers(), max_size=80))
def test_no_more_than_the_bound_and_none_left_out_that_is_larger_than_all_shown(sizes, shown):
    chosen = largest(sizes, shown)
    assert len(chosen) == min(len(sizes), MOST_SERIES)
    left = [sizes[key] for key in sizes.keys() - chosen]
    assert not left or max(left) <= max(sizes[key] for key in chosen) * 1.5


def test_a_name_cannot_break_the_page_or_fill_it():
    assert label("a\nb\x1b[31m\x00") == "a?b?[31m?"
    assert label("é 漢") == "é 漢"
    assert len(label("x" * 10_000)) == 128
