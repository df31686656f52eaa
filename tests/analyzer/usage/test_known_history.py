"""Each row of `analyzer usage` against the true energy, from two servers and a history file."""

import json
import math
from contextlib import ExitStack

import pytest

from tests import servers
from tests.analyzer.fleet_nodes import import_to_victoria_metrics, write_prometheus_blocks
from tests.analyzer.small_fleet import write_samples
from tests.analyzer.usage.known_history import (
    BEGIN_S,
    END_S,
    LOST_S,
    NEW,
    known_series,
    true_energies,
)
from tests.analyzer.usage.usage_rows import by_key

SOURCES = ("prometheus", "victoria-metrics", "history")
WINDOWS = {
    "first-scrapes": (BEGIN_S, END_S),
    "restart": (BEGIN_S + 2_400, END_S),
    "before-restart": (BEGIN_S, BEGIN_S + 3_000),
    "after-restart": (BEGIN_S + 4_500, END_S),
}
ROUNDING_J = 10.0
"""Counters are whole joules; a row adds up to 20 of them."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    series = known_series()
    for name in ("prometheus", "victoria-metrics"):
        (folder / name).mkdir()
    write_prometheus_blocks(folder / "prometheus", series)
    with ExitStack() as stack:
        prometheus = stack.enter_context(
            servers.prometheus(
                folder / "prometheus", [], flags=["--storage.tsdb.retention.time=3000d"]
            )
        )
        victoria = stack.enter_context(
            servers.victoria_metrics(
                folder / "victoria-metrics", [], flags=["-retentionPeriod=3000d"]
            )
        )
        import_to_victoria_metrics(victoria, series)
        history = str(write_samples(folder, series))
        yield {"prometheus": prometheus, "victoria-metrics": victoria, "history": history}


@pytest.fixture
def documents(call, sources):
    """Return the documents of a window by source."""

    def run(window, by):
        found = {}
        for name in SOURCES:
            options = ("--source", sources[name], "--by", by, "--format", "json")
            code, out, err = call("usage", *options, "--since", window[0], "--until", window[1])
            assert code == 0, err
            found[name] = json.loads(out)
        return found

    return run


def limits(row):
    """Return the limits of the energy that a row states."""
    value = row["energy_joules"]
    if row.get("energy_state") != "partial":
        return value, value
    low, high = row.get("energy_rest_limits_joules") or (0.0, None)
    return value + low, math.inf if high is None else value + high


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("key", ["user", "model"])
def test_usage_rows_state_the_true_energy(documents, window, key):
    """A row that is not partial is right; a partial one is a limit that is close."""
    start_s, end_s = window
    truth = true_energies(start_s, end_s, key)
    true_total_j = truth.pop("")

    for name, document in documents(window, key).items():
        rows = by_key(document, key)
        assert rows.keys() >= {text for text, joules in truth.items() if joules > ROUNDING_J}
        for text, row in rows.items():
            if row["energy_joules"] is None:
                assert truth[text] < ROUNDING_J, (name, text)
                continue
            low_j, high_j = limits(row)
            assert low_j - ROUNDING_J <= truth[text] <= high_j + ROUNDING_J, (name, text)
            # two devices of node r, its CPU and its DRAM are not known for LOST_S
            lost_j = 2 * LOST_S * (300 + 120 + 20)
            assert row["energy_joules"] == pytest.approx(truth[text], abs=lost_j), (name, text)
        low_j, high_j = limits(document["total"])
        assert low_j - ROUNDING_J <= true_total_j <= high_j + ROUNDING_J, name


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("by", ["user", "user,model", "node", "gpu_model"])
def test_usage_rows_are_equal_from_all_sources(documents, window, by):
    found = documents(window, by)

    for document in found.values():
        del document["source"]
        document["notes"] = [one for one in document["notes"] if "energy from the" not in one]
    history = found["history"]
    for name in ("prometheus", "victoria-metrics"):
        assert found[name].keys() == history.keys()
        for part in ("runs", "remainder", "total"):
            assert_equal_rows([found[name][part]], [history[part]])
        for part in ("groups", "unattributed"):
            assert_equal_rows(found[name][part], history[part])
        assert found[name]["nodes"] == history["nodes"]
        assert found[name]["notes"] == history["notes"]


def assert_equal_rows(some, others):
    assert len(some) == len(others)
    for one, other in zip(some, others, strict=True):
        numbers, texts = flat(one)
        other_numbers, other_texts = flat(other)
        assert numbers == pytest.approx(other_numbers, rel=1e-9, abs=1e-6)
        assert texts == other_texts


def flat(row):
    """Return the numbers and the texts of a row, also of its work and emissions."""
    numbers = {}
    texts = {}
    for name, value in row.items():
        if isinstance(value, dict):
            inner = flat(value)
            numbers |= {f"{name} {key}": one for key, one in inner[0].items()}
            texts |= {f"{name} {key}": one for key, one in inner[1].items()}
        elif isinstance(value, int | float):
            numbers[name] = value
        elif not isinstance(value, list):  # those of emissions are in another form, too
            texts[name] = value
    return numbers, texts


@pytest.mark.parametrize("key", ["user", "model"])
def test_usage_total_and_rows_of_adjacent_windows_add_up(documents, key):
    """The total does not depend on the keys, nor on the borders of windows."""
    middle_s = BEGIN_S + 2_400
    first, second, whole = (
        documents(window, key)["prometheus"]
        for window in ((BEGIN_S, middle_s), (middle_s, END_S), (BEGIN_S, END_S))
    )

    total_j = whole["total"]["energy_joules"]
    assert first["total"]["energy_joules"] + second["total"]["energy_joules"] == total_j
    rows = by_key(whole, key)
    for text, row in rows.items():
        parts = [by_key(one, key).get(text, {}) for one in (first, second)]
        joules = sum(part.get("energy_joules") or 0.0 for part in parts)
        assert joules == pytest.approx(row["energy_joules"], rel=1e-9), text


def test_usage_run_at_two_addresses_counts_once(documents):
    """The run of joe takes 300 W for 2,000 s; its exporter has another address from 1,000 s on."""
    for name, document in documents((BEGIN_S, END_S), "user").items():
        joe = by_key(document, "user")["joe"]
        assert joe["energy_joules"] == pytest.approx(440 * 2_000, abs=2), name
        assert joe["work"]["generated_tokens"]["amount"] == 200_000, name
        assert joe["work"]["generated_tokens"]["energy_per_unit_joules"] == pytest.approx(3)
        assert joe["runs"] == 1
        assert joe["gpu_hours"] == pytest.approx(2_000 / 3_600)
        assert NEW in document["nodes"]
        assert len(document["nodes"]) == 6


def test_usage_work_in_a_phase_on_two_nodes_has_the_energy_of_both(documents):
    """300 W on each of two nodes for the 1,500 s in which 150,000 tokens were made."""
    for name, document in documents((BEGIN_S, END_S), "user").items():
        tokens = by_key(document, "user")["ida"]["work"]["generated_tokens"]
        assert tokens["amount"] == 150_000, name
        assert tokens["energy_per_unit_joules"] == pytest.approx(6), name


def test_usage_rows_of_new_nodes_are_partial_and_say_so(documents):
    document = documents((BEGIN_S, END_S), "user")["victoria-metrics"]

    states = {
        user: row.get("energy_state", "known") for user, row in by_key(document, "user").items()
    }
    partial = {user for user, state in states.items() if state == "partial"}
    # ann, eve and gus used nodes n1 and n2 before their first scrape; hal used node r
    assert partial == {"ann", "eve", "gus", "hal"}
    assert document["nodes_with_fallen_counters"] == ["r:9847"]
    assert any("n1:9847 counts from 10:30:01" in note for note in document["notes"])
