"""Times of a run from its windows on one or several instances."""

from dataclasses import replace

from wattline_analyzer.core.timeline import RunTimes, Window

FIRST = Window(100.0, 160.0, ended=True, duration_s=59.5)
"""The wall clock shows 60 s, the monotonic clock 59.5 s."""
SECOND = Window(90.0, 150.0, ended=True, duration_s=60.0)


def test_run_times_one_instance_has_its_own_duration():
    times = RunTimes({"a": FIRST})

    assert (times.started_at_s, times.ended_at_s, times.duration_s) == (100.0, 160.0, 59.5)


def test_run_times_several_instances_last_from_first_start_to_last_end():
    times = RunTimes({"b": SECOND, "a": FIRST})

    assert times.instances == ("a", "b")
    assert (times.started_at_s, times.ended_at_s, times.duration_s) == (90.0, 160.0, 70.0)


def test_run_times_clocks_that_disagree_leave_the_longest_duration():
    times = RunTimes({"a": FIRST, "b": replace(SECOND, aligned=False)})

    assert times.duration_s == 60.0


def test_run_times_instance_without_an_end_leaves_the_end_unknown():
    times = RunTimes({"a": FIRST, "b": replace(SECOND, ended=False)})

    assert times.ended_at_s is None
    assert times.duration_s == 70.0
