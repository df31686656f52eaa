"""The start of least emissions: against brute force, and from the forecast that an exporter publishes."""

import json
import time
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.assess.run import assess, run_power_profile
from analyzer.carbon.best_start import Forecast, NoStartError, Profile, starts
from analyzer.model.emissions import PastSlot
from analyzer.output.studies.best_start import best_start_output, best_start_verdict
from tests.analyzer.forecasts import NIGHT, in_force, published
from tests.analyzer.node import START_S, Gpu, Run, every, scraped, write_history
from tests.analyzer.reported import frames_with

HOUR_S = 3_600.0
JOULES = 3.6e6
NOW_S = START_S // HOUR_S * HOUR_S
ONE_KWH_HOUR = Profile((HOUR_S,), (JOULES,), "given")


def hourly(*values, begin_s=NOW_S, made_s=NOW_S - 1_800, length_s=HOUR_S):
    slots = [
        PastSlot(begin_s + n * length_s, begin_s + (n + 1) * length_s, grams, "forecast")
        for n, grams in enumerate(values)
        if grams is not None
    ]
    return Forecast("gb", "GB", "average", tuple(slots), made_s)


def advised(forecast, run=ONE_KWH_HOUR, *, now_s=NOW_S, within_h=48, step_s=1_800):
    return starts(forecast, run, now_s, within_h * HOUR_S, step_s)


def test_a_kilowatt_hour_is_best_drawn_in_the_hour_of_the_least_intensity():
    found = advised(hourly(200, 100, 300, 400))

    assert (found.now.mass_g, found.best.mass_g, found.worst.mass_g) == pytest.approx((200, 100, 400))
    assert (found.best.at_s, found.worst.at_s) == (NOW_S + HOUR_S, NOW_S + 3 * HOUR_S)
    assert found.saved_ratio == pytest.approx(0.5)
    assert found.clear


def test_a_run_that_spans_two_slots_takes_a_part_of_each():
    found = advised(hourly(200, 100, 300), now_s=NOW_S + 1_800)

    assert found.now.mass_g == pytest.approx(150)  # half an hour at 200, half at 100


def test_a_run_that_draws_most_at_its_end_begins_before_the_least_intensity():
    """0.1 kWh in the first hour and 0.9 kWh in the second: 20 + 90 g from now, 10 + 270 g an hour later."""
    late = Profile((HOUR_S, HOUR_S), (0.1 * JOULES, 0.9 * JOULES), "gpu")

    found = advised(hourly(200, 100, 300, 300), late)

    assert found.best.at_s == NOW_S
    assert [start.mass_g for start in found.every[::2]] == pytest.approx([110, 280, 300])


def test_less_than_five_percent_is_no_clear_difference():
    found = advised(hourly(100, 96, 104))

    assert found.saved_ratio == pytest.approx(0.04)
    assert not found.clear
    assert best_start_verdict(found) == "no clear difference: the best start saves less than 5 % compared with now"


def test_starts_after_which_the_forecast_ends_too_soon_are_not_looked_at_and_that_is_said():
    found = advised(hourly(200, 100, 300))

    assert max(start.at_s for start in found.every) == NOW_S + 2 * HOUR_S
    assert found.cut_short
    assert any("are not included" in part for part in best_start_output(found).parts if isinstance(part, str))


def test_a_forecast_that_covers_all_starts_is_not_said_to_end():
    found = advised(hourly(*[100.0] * 4), within_h=2)

    assert not found.cut_short
    assert max(start.at_s for start in found.every) == NOW_S + 2 * HOUR_S


def test_no_start_runs_through_a_hole_of_the_forecast():
    found = advised(hourly(300, None, 200, 100), step_s=HOUR_S)

    assert [(start.at_s - NOW_S) / HOUR_S for start in found.every] == [0, 2, 3]


def test_where_the_present_is_not_forecast_there_is_nothing_to_hold_the_best_against():
    found = advised(hourly(None, 100, 300))

    assert (found.now, found.saved_ratio, found.clear) == (None, None, False)
    assert "a start now is outside the forecast" in best_start_verdict(found)


@pytest.mark.parametrize(
    ("forecast", "run", "told"),
    [
        (hourly(100, 100), Profile((3 * HOUR_S,), (JOULES,), "x"), "ends in 2.0 h, before a run of 3.0 h would"),
        (hourly(100, begin_s=NOW_S - 3 * HOUR_S), ONE_KWH_HOUR, "ended 2.0 h ago"),
        (hourly(100, None, 100, None, 100), Profile((2 * HOUR_S,), (JOULES,), "x"), "has gaps"),
    ],
)
def test_a_forecast_that_covers_no_start_is_refused_with_the_reason(forecast, run, told):
    with pytest.raises(NoStartError, match=told):
        advised(forecast, run)


QUARTERS = st.lists(st.one_of(st.none(), st.integers(0, 900)), min_size=1, max_size=24)
PARTS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 100)), min_size=1, max_size=5)


def minutes_of(values):
    return {n * 15 + k: grams for n, grams in enumerate(values) for k in range(15) if grams is not None}


@given(QUARTERS, PARTS, st.integers(0, 90))
def test_each_start_is_that_of_a_sum_over_minutes(values, parts, now_min):
    """Slots of a quarter of an hour, parts of whole minutes, starts at whole minutes: nothing is lost in a minute."""
    known = minutes_of(values)
    run = Profile(tuple(60.0 * minutes for minutes, _ in parts), tuple(1e5 * joules for _, joules in parts), "x")
    drawn = [1e5 * joules / minutes for minutes, joules in parts for _ in range(minutes)]
    expected = {}
    for start in range(now_min, now_min + 301):
        if (start == now_min or start % 10 == 0) and all(start + n in known for n in range(len(drawn))):
            expected[start] = sum(joules * known[start + n] for n, joules in enumerate(drawn)) / JOULES

    if not any(grams is not None for grams in values):
        return
    try:
        found = starts(hourly(*values, length_s=900), run, NOW_S + 60 * now_min, 300 * 60, 600)
    except NoStartError:
        assert expected == {}
        return

    assert {round((start.at_s - NOW_S) / 60): start.mass_g for start in found.every} == pytest.approx(expected)
    assert found.best.mass_g == pytest.approx(min(expected.values()))
    assert found.worst.mass_g == pytest.approx(max(expected.values()))


def test_the_profile_of_a_run_has_its_energy_where_it_was_drawn(tmp_path):
    """200 W for 10 min, then 400 W for 10 min: 60 kJ in each of the first two parts, 120 kJ in the others."""
    end_s = START_S + 1_200
    gpu = Gpu([(START_S - 1_000, 60), (START_S, 200), (START_S + 600, 400), (end_s, 60)])
    frames = frames_with(
        tmp_path, Run(end_s=end_s, cpu_j=40_000), gpus=[gpu], times=every(10, START_S - 60, end_s + 60)
    )

    found = run_power_profile(frames, assess(frames))

    assert found.boundary == "gpu+cpu"
    assert found.durations_s == (300.0,) * 4
    assert found.energies_j == pytest.approx([70_000, 70_000, 130_000, 130_000])  # 10 kJ of the CPU in each
    assert found.energy_j == pytest.approx(400_000)


def shown(now_s, by_hour, **where):
    return [*in_force(now_s, by_hour[0], **where), *published(by_hour, **where)]


def test_the_command_advises_from_the_newest_scrape_of_an_exporter(analyzer, tmp_path):
    """1 kWh over an hour: 300 g now, 90 g in 10 hours."""
    now_s = time.time()
    older = [500.0] * 49
    scrapes = [(now_s - 300, shown(now_s - 300, older)), (now_s - 5, shown(now_s - 5, NIGHT))]
    source = write_history(tmp_path, scraped(scrapes))

    call = ("best-start", "--source", source, "--energy-kwh", "1", "--hours", "1")
    table, data = analyzer(*call), analyzer(*call, "--format", "json")

    found = json.loads(data.stdout)
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.startswith("start at ")
    assert "saves 70 % compared with now" in table.stdout
    assert found["now"]["emissions_grams"] == pytest.approx(300)
    assert found["best"]["emissions_grams"] == pytest.approx(90)
    assert 9.4 <= (found["best"]["start_unix_seconds"] - now_s) / HOUR_S <= 10.1  # the hour holds from its half before
    assert found["forecast"]["age_seconds"] == pytest.approx(605, abs=60)
    assert found["forecast"]["basis"] == "average"


def test_the_command_takes_a_forecast_from_a_file_and_a_run_from_the_source(analyzer, tmp_path):
    """The run of 20 s and 6,000 J lies within one slot wherever it starts: 6,000 J at 50 g/kWh at best."""
    gpu = Gpu([(START_S - 1_000, 60), (START_S, 300), (START_S + 20, 60)])
    frames_with(tmp_path, Run(), gpus=[gpu])
    begin_s = time.time() // HOUR_S * HOUR_S
    rows = [
        f"{datetime.fromtimestamp(begin_s + n * HOUR_S, UTC).isoformat()},{grams}"
        for n, grams in enumerate([200] * 5 + [50] * 5)
    ]
    (tmp_path / "grid.csv").write_text("\n".join(["time,g_per_kwh", *rows, ""]))

    done = analyzer(
        *("best-start", "--run-id", "train-1", "--since", "36500d", "--source", tmp_path / "history.sqlite"),
        *("--forecast", tmp_path / "grid.csv", "--format", "json"),
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["boundary"], found["duration_seconds"]) == ("gpu", pytest.approx(20))
    assert found["best"]["emissions_grams"] == pytest.approx(6_000 / JOULES * 50)
    assert found["best"]["start_unix_seconds"] == pytest.approx(begin_s + 5 * HOUR_S)


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        ([], 2, "give --run-id of a similar run, or both --energy-kwh and --hours"),
        (["--energy-kwh", "1"], 2, "both --energy-kwh and --hours"),
        (["--energy-kwh", "inf", "--hours", "1"], 2, "--energy-kwh: expected more than 0, not inf"),
        (["--energy-kwh", "0", "--hours", "1"], 2, "--energy-kwh: expected more than 0, not 0"),
        (["--energy-kwh", "1", "--hours", "1", "--forecast", "f.csv", "--region", "GB"], 2, "leave it out with"),
        (["--energy-kwh", "1", "--hours", "0"], 2, "--hours: expected more than 0"),
        (["--energy-kwh", "1", "--hours", "1", "--run-id", "x"], 2, "--run-id excludes --energy-kwh"),
        (
            ["--energy-kwh", "1", "--hours", "1", "--within", "2"],
            2,
            "--within: expected a duration above 0 in s",
        ),
        (["--energy-kwh", "1", "--hours", "1"], 1, "has no average forecast of the last 24 h"),
        (["--energy-kwh", "1", "--hours", "1", "--forecast", "nowhere.csv"], 1, "cannot read nowhere.csv"),
    ],
)
def test_what_cannot_be_advised_is_told_in_one_line(analyzer, steady_history, options, code, told):
    done = analyzer("best-start", "--source", steady_history, *options)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
    assert told in done.stderr


def test_forecasts_for_two_regions_need_one_to_be_named(analyzer, tmp_path):
    now_s = time.time()
    both = [*shown(now_s - 5, NIGHT), *shown(now_s - 5, [100.0] * 49, region="London")]
    source = write_history(tmp_path, scraped([(now_s - 5, both)]))
    call = ("best-start", "--source", source, "--energy-kwh", "1", "--hours", "1", "--format", "json")

    neither, named = analyzer(*call), analyzer(*call, "--region", "London")

    assert neither.returncode == 1
    assert "has forecasts for GB, London; select one with --region" in neither.stderr
    assert json.loads(named.stdout)["best"]["emissions_grams"] == pytest.approx(100)
    assert json.loads(named.stdout)["clear"] is False
