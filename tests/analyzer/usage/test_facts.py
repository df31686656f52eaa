"""Nodes behind addresses, and counters that several addresses show."""

import pytest

from wattline.contract import metrics as m
from wattline_analyzer.usage.facts import Edges, Readings, facts_of, key_of, node_names

START_S, END_S = 1_000.0, 2_000.0


def gpu_key(instance, uuid):
    return key_of({"__name__": m.GPU_ENERGY.name, "instance": instance, "gpu": "0", "uuid": uuid})


def node_key(instance, machine_id):
    labels = {"__name__": m.NODE_INFO.name, "instance": instance, "machine_id": machine_id}
    return key_of(labels)


def counter_of(**edges_by_instance):
    """Return the only counter of a GPU that the addresses show."""
    readings = Readings("server", START_S, END_S)
    for instance, edges in edges_by_instance.items():
        readings.edges[gpu_key(instance, "GPU-1")] = edges
        if edges.before is None:
            readings.first_s[instance] = edges.first_s
    (counter,) = facts_of(readings).counters
    return counter


def edges(last, **values):
    return Edges({"uuid": "GPU-1"}, last, **values)


def names_of(*keys, **last_s):
    """Return the node of each address; `last_s` are the times of last samples, END_S for others."""
    return node_names(
        {
            key: Edges({}, 0.0, first_s=START_S, last_s=last_s.get(key.instance, END_S))
            for key in keys
        }
    )


def test_node_names_one_gpu_at_two_addresses_is_one_node():
    """Address a has had no sample for more than 300 s, so that b counts."""
    keys = [gpu_key("a", "GPU-1"), gpu_key("b", "GPU-1"), gpu_key("other", "GPU-2")]

    assert names_of(*keys, a=END_S - 301) == {"a": "b", "b": "b", "other": "other"}


def test_node_names_chain_of_addresses_is_one_node():
    """Address a shows the GPU G1, b shows G1 and G2, and c shows G2: b shows most."""
    keys = [gpu_key("a", "G1"), gpu_key("b", "G1"), gpu_key("b", "G2"), gpu_key("c", "G2")]

    assert names_of(*keys) == {"a": "b", "b": "b", "c": "b"}


def test_node_names_equal_gpus_of_different_machines_are_different_nodes():
    keys = [gpu_key("a", "G1"), gpu_key("b", "G1"), node_key("a", "m-1"), node_key("b", "m-2")]

    assert names_of(*keys) == {"a": "a", "b": "b"}


def test_node_names_addresses_of_one_machine_are_one_node():
    keys = [gpu_key("a", "G1"), gpu_key("b", "G2"), node_key("a", "m-1"), node_key("b", "m-1")]

    assert names_of(*keys) == {"a": "a", "b": "a"}


def test_node_names_address_without_machine_is_the_node_of_its_gpu():
    keys = [gpu_key("a", "G1"), gpu_key("b", "G1"), node_key("b", "m-1")]

    assert names_of(*keys) == {"a": "b", "b": "b"}


def test_counter_at_a_new_address_goes_on():
    """The counter rises from 100 J to 400 J at the first address, and to 900 J at the second."""
    counter = counter_of(
        old=edges(400.0, before=100.0, last_s=1_500.0),
        new=edges(900.0, first=450.0, first_s=1_600.0),
    )

    assert (counter.increase, counter.reason) == (800.0, "")


def test_counter_at_two_addresses_at_once_counts_once():
    counter = counter_of(a=edges(900.0, before=100.0), b=edges(895.0, before=98.0))

    assert counter.increase == 800.0
    assert counter.reason == ""


def test_counter_that_restarted_at_its_new_address_adds_both():
    """300 J at the first address; the second one counts from 0 to 50 J."""
    counter = counter_of(
        old=edges(400.0, before=100.0, last_s=1_500.0),
        new=edges(50.0, first=10.0, first_s=1_600.0),
    )

    assert counter.increase == 300.0 + 50.0
    assert counter.is_cut
    assert "its counters fell" in counter.reason


def test_counter_of_a_gpu_that_appears_on_a_known_node_counts_from_its_first_sample():
    readings = Readings("server", START_S, END_S)
    readings.edges[gpu_key("a", "GPU-1")] = edges(900.0, before=100.0)
    readings.edges[gpu_key("a", "GPU-2")] = Edges({"uuid": "GPU-2"}, 5_400.0, first=5_000.0)

    increases = {
        one.labels["uuid"]: (one.increase, one.is_cut) for one in facts_of(readings).counters
    }

    assert increases == {"GPU-1": (800.0, False), "GPU-2": (400.0, True)}


@pytest.mark.parametrize(("before", "expected"), [(0.0, 40.0), (5.0, 0.0)])
def test_counter_of_a_new_owner_states_what_may_be_older(before, expected):
    labels = {"__name__": m.OWNER_ENERGY.name, "instance": "a", "kind": "slurm", "owner": "ada"}
    readings = Readings("server", START_S, END_S)
    readings.edges[gpu_key("a", "GPU-1")] = edges(900.0, before=100.0)
    readings.edges[key_of(labels)] = Edges(labels, 60.0, before=before, soon=40.0)

    (owner,) = (one for one in facts_of(readings).counters if one.metric is m.OWNER_ENERGY)

    assert owner.hidden == expected
    assert (owner.reason != "") == (expected > 0)
    assert not owner.is_cut
