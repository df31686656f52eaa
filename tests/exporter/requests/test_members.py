"""Members of a shared GPU over time."""

import math

from wattline_exporter.requests.members import Member, Membership


def members_at(members, *times_s):
    found = Membership.of(members)
    return [
        "".join(sorted(found.members[sum(edge_s <= t_s for edge_s in found.edges_s)]))
        for t_s in times_s
    ]


def test_members_are_those_that_are_open():
    members = {"a": Member(0.0, 10.0), "b": Member(0.0, 20.0, 30.0)}

    assert members_at(members, 15.0, 20.0, 25.0, 30.0) == ["a", "ab", "ab", "a"]


def test_times_without_open_members_belong_to_the_nearest_one():
    """Run a ends at 20 s and run b begins at 30 s: up to 25 s, a is nearer."""
    members = {"a": Member(0.0, 10.0, 20.0), "b": Member(0.0, 30.0, 40.0)}

    assert members_at(members, 5.0, 20.0, 24.9, 25.1, 35.0, 50.0) == ["a", "a", "a", "b", "b", "b"]


def test_single_member_has_all_time():
    found = Membership.of({"a": Member(0.0, 10.0)})

    assert set(found.members) == {frozenset("a")}
    assert all(math.isfinite(edge_s) for edge_s in found.edges_s)
