"""Changes of the samples, the source or the time that must not change the figures of a report."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analyzer.golden.documents import leaves, without_texts
from tests.analyzer.metamorphic.world import (
    BUDGET,
    SLOT_S,
    expected_document,
    range_document,
    run_document,
    worlds,
)
from tests.analyzer.node import START_S
from wattline.contract.history import Series
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_analyzer.core.run_report import UserInputs

HOUR_S = 3_600.0
SCALED = ("/energy/", "/attributed", "/work", "/boundaries", "/phases", "/carbon_slots", "/gpu/")
LEDGER = (
    "energy",
    "attributed_energy",
    "work",
    "boundaries",
    "phases",
    "results",
    "emissions",
    "duration_seconds",
)
"""Keys of figures that the exporter's ledger has exactly, with any scrapes."""


def figures(document, keys=None):
    """Return all figures of a document, or those under some keys, without names and texts."""
    chosen = document if keys is None else {key: document[key] for key in keys}
    return {
        path: value
        for path, value in leaves(without_texts(chosen)).items()
        if not path.endswith("/text")
    }


def assert_same(result, expected, *, keys=None, rel=1e-9):
    result, expected = figures(result, keys), figures(expected, keys)
    assert result.keys() == expected.keys()
    for path, value in expected.items():
        near = isinstance(value, float)
        assert result[path] == (pytest.approx(value, rel=rel, abs=1e-9) if near else value), path


def shifted(series, by_s):
    """Return the same samples at another time, with the times that are values."""
    return [
        Series(
            one.labels,
            [
                (
                    t + by_s,
                    value + by_s
                    if one.labels["__name__"].endswith("_timestamp_seconds")
                    else value,
                )
                for t, value in one.samples
            ],
        )
        for one in series
    ]


def relabelled(series, **labels):
    return [Series({**one.labels, **labels}, one.samples) for one in series]


def without_scrapes(series, times):
    return [
        Series(one.labels, [sample for sample in one.samples if sample[0] not in times])
        for one in series
    ]


def back(document, by_s):
    """Return the document with its times shifted back."""
    if isinstance(document, dict):
        return {
            key: value - by_s
            if key.endswith("_unix_seconds") and value is not None
            else back(value, by_s)
            for key, value in document.items()
        }
    return [back(value, by_s) for value in document] if isinstance(document, list) else document


@BUDGET
@given(worlds(), st.integers(0, 2**31))
def test_report_order_of_samples_changes_nothing(world, seed):
    series = world.series()

    assert_same(run_document(series, seed=seed), expected_document(world))


@BUDGET
@given(
    worlds(),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Kolkata"]),
    st.integers(-9_000, 100),
)
def test_report_shift_by_hours_changes_times_only(local_zone_during, world, zone, hours):
    """More than a year, so that most runs get another offset of the local time zone."""
    by_s = hours * HOUR_S
    expected = expected_document(world)

    with local_zone_during(zone):
        result = run_document(shifted(world.series(), by_s), now_s=START_S + 7_200 + by_s)

    assert_same(back(result, by_s), expected, rel=1e-6)


@BUDGET
@given(worlds())
def test_report_other_names_change_names_only(world):
    """Another instance, job and label of the scraper, and another label of the run."""
    series = relabelled(
        world.series(), job="other", instance="10.0.0.7:9847", cluster="east", pod="exporter-0"
    )
    model = [
        Series(
            {**one.labels, **({"label_model": "x"} if "label_model" in one.labels else {})},
            one.samples,
        )
        for one in series
    ]

    result = run_document(model)

    expected = copy.deepcopy(expected_document(world))
    for document in (result, expected):
        document["labels"], document["instances"] = {}, []
    renamed = _with_text(expected, "a:9847", "10.0.0.7:9847")
    assert_same(result, renamed)


def _with_text(data, old, new):
    if isinstance(data, dict):
        return {key: _with_text(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_text(value, old, new) for value in data]
    return new if data == old else data


@BUDGET
@given(worlds(), worlds(), st.booleans())
def test_report_unrelated_node_and_gpu_change_nothing(world, other, same_time):
    """Another node with its own run, and another GPU of the node without a run."""
    by_s = 0.0 if same_time else -1_000.0
    beside = shifted(other.series({"other-run": (other.start_s, other.end_s)}, "b:9847"), by_s)
    spare = [
        Series({**one.labels, "gpu": "7", "uuid": "GPU-spare"}, one.samples)
        for one in world.series()
        if "uuid" in one.labels and one.labels.get("gpu") == "0" and "run_id" not in one.labels
    ]

    assert_same(run_document([*beside, *world.series(), *spare]), expected_document(world))


@BUDGET
@given(worlds(), st.data())
def test_report_dropped_scrapes_keep_ledger_and_raw_limits(world, data):
    """The ledger's figures stay; limits from raw samples contain the true energy."""
    series, times = world.series(), world.times()
    kept_last = [t for t in times if t < world.end_s + 2]
    dropped = data.draw(st.sets(st.sampled_from(kept_last), max_size=len(kept_last) // 2))

    result = run_document(without_scrapes(series, dropped))

    expected = expected_document(world)
    assert_same(result, expected, keys=LEDGER)
    _assert_raw_limits_contain_truth(result, world)
    _assert_raw_limits_contain_truth(expected, world)


def _assert_raw_limits_contain_truth(document, world):
    low_j, high_j = (document["gpu"][f"raw_samples_energy_{end}_joules"] for end in ("low", "high"))
    true_j = world.energy_j(world.start_s, world.end_s)
    assert low_j is None or low_j - 1e-6 <= true_j <= high_j + 1e-6


@BUDGET
@given(worlds(), st.floats(0.05, 0.95))
def test_report_second_scraper_keeps_ledger_and_adds_no_warning(world, share):
    """Another job scrapes the same exporter between the scrapes of the first one."""
    later = replace(world, offset_s=world.offset_s + share * world.spacing_s)

    result = run_document([*world.series(), *relabelled(later.series(), job="other")])

    assert_same(result, expected_document(world), keys=LEDGER)
    _assert_raw_limits_contain_truth(result, world)
    assert _codes(result) <= _codes(expected_document(world))


def _codes(document):
    return {finding["code"] for finding in document["findings"]}


@BUDGET
@given(worlds(), st.sampled_from([1.0, 2.0, 5.0, 15.0]), st.floats(0, 1))
def test_report_other_scrape_times_keep_ledger(world, spacing_s, offset_s):
    late = replace(world, spacing_s=spacing_s, offset_s=offset_s * spacing_s)

    result = run_document(late.series())

    assert_same(result, expected_document(world), keys=LEDGER)
    _assert_raw_limits_contain_truth(result, world)


@BUDGET
@given(worlds(), st.floats(0.1, 10))
def test_report_scaled_intensity_scales_emissions_only(world, factor):
    scaled = replace(world, grams=tuple(factor * grams for grams in world.grams))

    result, expected = run_document(scaled.series()), expected_document(world)

    assert_same(result, expected, keys=[key for key in LEDGER if key != "emissions"])
    assert _grams(result) == pytest.approx([factor * grams for grams in _grams(expected)])


def _grams(document):
    found = [one["emissions_grams"] for one in document["emissions"]]
    return [*found, *(one["gpu_emissions_grams"] for one in document["carbon_slots"])]


@BUDGET
@given(worlds(), st.floats(0.25, 4))
def test_report_scaled_joules_scale_energy_and_keep_ratios(world, factor):
    """All energies, powers and emissions times a factor, as with a GPU of another size."""
    scaled = [
        Series(one.labels, [(t, factor * value) for t, value in one.samples])
        if any(unit in one.labels["__name__"] for unit in ("joules", "watts", "emissions_grams"))
        else one
        for one in world.series()
    ]

    result, expected = figures(run_document(scaled)), figures(expected_document(world))

    for path, value in expected.items():
        if isinstance(value, float) and path.startswith(SCALED):
            grows = any(
                unit in path
                for unit in ("joules", "watt_hours", "watts", "kilowatt_hours", "gpu_emissions")
            )
            power = -1 if "units_per_joule" in path else int(grows)
            assert result[path] == pytest.approx(factor**power * value, rel=1e-6), path


@BUDGET
@given(worlds(), st.floats(0.2, 0.8))
def test_report_run_split_in_two_adds_up(world, share):
    """Energy, work and emissions of two runs, one after the other, add up to those of one run."""
    cut_s = round(world.start_s + share * world.length_s, 3)
    past = PastIntensities(
        "gb",
        "GB",
        "average",
        tuple(
            PastSlot(
                world.border_s + SLOT_S * n, world.border_s + SLOT_S * (n + 1), grams, "actual"
            )
            for n, grams in ((-1, 90.0), (0, 450.0))
        ),
    )
    inputs = UserInputs(past=(past,))
    halves = world.series({"first": (world.start_s, cut_s), "second": (cut_s, world.end_s)})

    whole = run_document(world.series(), inputs=inputs)
    parts = [run_document(halves, run_id, inputs=inputs) for run_id in ("first", "second")]

    for total in (
        lambda one: one["energy"]["gpu"]["energy_joules"],
        lambda one: one["energy"]["cpu"]["energy_joules"],
        lambda one: one["attributed_energy"]["gpu"]["idle_shared_joules"],
        lambda one: one["duration_seconds"],
        lambda one: one["work"].get("generated_tokens", {}).get("amount", 0.0),
        lambda one: sum(
            emission["emissions_grams"]
            for emission in one["emissions"]
            if emission["origin"] == "ledger"
        ),
    ):
        assert sum(map(total, parts)) == pytest.approx(total(whole), rel=1e-6)
    true_g = sum(
        world.energy_j(max(slot.start_s, world.start_s), min(slot.end_s, world.end_s))
        * slot.grams_per_kwh
        / 3.6e6
        for slot in past.slots
    )
    masses = [_restated_gpu(one) for one in (whole, *parts)]
    assert abs(masses[0][0] - true_g) <= masses[0][1] + 1e-9
    assert abs(masses[1][0] + masses[2][0] - true_g) <= masses[1][1] + masses[2][1] + 1e-9


def _restated_gpu(document):
    """Return the restated emissions of the GPUs in g CO2eq, and their half-width."""
    found = [
        one
        for one in document["emissions"]
        if (one["origin"], one["component"]) == ("restated", "gpu")
    ]
    return sum(one["emissions_grams"] for one in found), sum(
        one["emissions_uncertainty_grams"] for one in found
    )


@BUDGET
@given(worlds(), st.floats(0.1, 0.9))
def test_range_split_in_two_adds_up(world, share):
    from_s, until_s = world.start_s - 20, world.end_s + 20
    cut_s = from_s + share * (until_s - from_s)

    whole, *parts = (
        range_document(world.series(), span)["energy"]["gpu"]["energy_joules"]
        for span in ((from_s, until_s), (from_s, cut_s), (cut_s, until_s))
    )

    assert sum(parts) == pytest.approx(whole, rel=1e-6)


@BUDGET
@given(worlds(), st.integers(0, 2**31))
def test_range_unrelated_node_and_order_change_nothing(world, seed):
    span = world.start_s - 20, world.end_s + 20
    beside = world.series({"other-run": (world.start_s, world.end_s)}, "b:9847")

    result = range_document([*beside, *world.series()], span, seed=seed, node="a:9847")

    assert_same(result, range_document(world.series(), span))
