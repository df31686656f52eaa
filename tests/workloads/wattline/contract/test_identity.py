"""Addresses of one node."""

from wattline.contract.identity import Sighting, sightings_by_node


def sighting(address, marks, first_s=0.0, last_s=1_000.0):
    return Sighting(address, frozenset(marks), first_s, last_s)


def addresses(*sightings):
    return [[one.address for one in node] for node in sightings_by_node(sightings)]


def test_sightings_of_different_gpus_are_two_nodes():
    assert addresses(sighting("b", "2"), sighting("a", "1")) == [["a"], ["b"]]


def test_sightings_through_a_third_one_are_one_node_of_most_gpus():
    found = addresses(sighting("a", "1"), sighting("c", "2"), sighting("b", "12"))

    assert found == [["b", "a", "c"]]


def test_sighting_that_follows_counts_even_with_fewer_gpus():
    found = addresses(sighting("a", "12", 0.0, 400.0), sighting("b", "1", 401.0, 500.0))

    assert found == [["b", "a"]]


def test_sighting_that_ended_more_than_five_minutes_ago_does_not_count():
    for last_s, order in ((699.0, ["b", "a"]), (700.0, ["a", "b"])):
        found = addresses(sighting("a", "1", 0.0, last_s), sighting("b", "1", 300.0, 1_000.0))

        assert found == [order]
