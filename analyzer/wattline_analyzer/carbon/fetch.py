"""Past and forecast carbon intensities that the user names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from wattline.contract import metrics as m
from wattline_analyzer.carbon import intensity_file as carbon_file
from wattline_analyzer.carbon import providers as carbon_history
from wattline_analyzer.carbon.best_start import Forecast
from wattline_analyzer.core.emissions import PastIntensities, PastSlot
from wattline_analyzer.core.facts import Fact
from wattline_analyzer.core.recorded_run import RecordedRun
from wattline_analyzer.core.sample_table import join_tables, last, rows_of
from wattline_analyzer.core.sources.base import FetchError, SampleSource
from wattline_exporter.sensors.carbon.providers import load_provider, provider_names

_LOOK_BACK_S = 86_400.0
_AHEAD_S = 120.0
_HOUR_S = 3_600.0
_AROUND_S = 60.0
_REMEDY = "check that its --carbon.provider has forecasts (exporter check), or give --forecast FILE"


def load_past_intensities(
    recorded: RecordedRun,
    wanted: Sequence[str],
    token_file: Path | None = None,
    base_url: str | None = None,
) -> tuple[PastIntensities, ...]:
    """Return the intensities of `PROVIDER`, `PROVIDER:REGION` or CSV files. Raises FetchError for a
    bad file.

    A provider's failure is the `problem` of its result.
    """
    start_s, end_s = recorded.scrapes.span_s
    found: list[PastIntensities] = []
    for text in wanted:
        name, _, region = text.partition(":")
        if name not in provider_names():
            found += carbon_file.read_carbon_file(Path(text))
            continue
        try:
            token = carbon_history.read_provider_token(token_file, name)
        except carbon_history.PastIntensityError as error:
            basis = load_provider(name).basis
            found.append(PastIntensities(name, region, basis, problem=str(error)))
            continue
        request = carbon_history.PastIntensityRequest(name, region, base_url, token)
        run_regions = rows_of(recorded.raw, m.CARBON_INTENSITY, provider=name).distinct("region")
        found.append(carbon_history.fetch_past_intensity(request, run_regions, start_s, end_s))
    bases = [past.basis for past in found]
    twice = next((basis for basis in bases if bases.count(basis) > 1), None)
    if twice:
        raise FetchError(
            f"--restate has two sources of {twice} intensities, which would be added up",
            "give one of them a basis",
        )
    return tuple(_with_problem(past, start_s, end_s) for past in found)


def _with_problem(past: PastIntensities, start_s: float, end_s: float) -> PastIntensities:
    """Add the reason why no slot applies to any part of the run, if there is none."""
    if past.problem or any(slot.start_s < end_s and slot.end_s > start_s for slot in past.slots):
        return past
    what = past.provider
    if not past.slots:
        return replace(past, problem=f"{what} has no value for the time of the run")
    first_s = min(slot.start_s for slot in past.slots)
    last_s = max(slot.end_s for slot in past.slots)
    if first_s >= end_s:
        return replace(past, problem=f"{what} starts at {_time_text(first_s)}, after the run")
    if last_s <= start_s:
        return replace(past, problem=f"{what} ends at {_time_text(last_s)}, before the run")
    return replace(past, problem=f"{what} has no value for the time of the run")


def _time_text(t_s: float) -> str:
    return (
        datetime.fromtimestamp(t_s, UTC).isoformat(timespec="seconds").removesuffix("+00:00") + "Z"
    )


def with_energy_counters(source: SampleSource, recorded: RecordedRun) -> RecordedRun:
    """Add the run's counters of GPUs, and those of CPU and DRAM, which give the energy of each
    slot.
    """
    if not len(recorded.raw):
        return recorded
    start_s = float(recorded.raw.t.min())
    end_s = float(recorded.raw.t.max())
    parts = [recorded.raw]
    if not recorded.untagged:
        parts.append(
            source.fetch(
                [m.RUN_ENERGY], {"run_id": recorded.run_id, "component": "gpu"}, start_s, end_s
            )
        )
    for instance in recorded.raw.distinct("instance"):
        where = {"instance": instance} if instance else {}
        parts += [
            source.fetch([m.CPU_ENERGY], {**where, "zone": zone}, start_s, end_s)
            for zone in ("package", "dram")
        ]
    return replace(recorded, raw=join_tables(parts))


def fetch_forecast(source: SampleSource, now_s: float, basis: str, region: str | None) -> Forecast:
    """Return the forecast of the newest scrape, for 1 to 48 hours after it. Raises FetchError.

    The value of an hour applies from half an hour before to half an hour after it.
    """
    matchers = {"basis": basis} | ({"region": region} if region else {})
    facts = source.facts(
        [m.CARBON_FORECAST],
        {**matchers, "horizon_hours": "1"},
        now_s - _LOOK_BACK_S,
        now_s + _AHEAD_S,
    )
    if not facts:
        where = f" for {region}" if region else ""
        raise FetchError(
            f"{source.name} has no forecast of {basis} intensity{where} from the last 24 h", _REMEDY
        )
    regions = sorted({row.labels["region"] for row in facts})
    if len(regions) > 1:
        raise FetchError(
            f"{source.name} has forecasts for {', '.join(regions)}", "select one with --region"
        )
    newest = max(facts, key=lambda fact: fact.t)
    return _of_scrape(source, newest, basis)


def _of_scrape(source: SampleSource, row: Fact, basis: str) -> Forecast:
    where = {"basis": basis, "provider": row.labels["provider"]}
    where |= {"instance": row.instance} if row.instance else {}
    metrics = [m.CARBON_FORECAST, m.CARBON_INTENSITY, m.CARBON_FETCHED_TIMESTAMP]
    table = source.fetch(metrics, where, row.t - _AROUND_S, row.t)
    table = table.take(table.t == row.t)
    region = row.labels["region"]
    by_hour = {
        int(one.labels["horizon_hours"]): one.value
        for one in last(table, m.CARBON_FORECAST, region=region)
    }
    present = last(table, m.CARBON_INTENSITY, region=region)
    if present:
        by_hour[0] = present[0].value
    fetched = last(table, m.CARBON_FETCHED_TIMESTAMP)
    slots = tuple(
        PastSlot(
            row.t + max(hour - 0.5, 0.0) * _HOUR_S,
            row.t + (hour + 0.5) * _HOUR_S,
            grams,
            "forecast",
        )
        for hour, grams in sorted(by_hour.items())
    )
    issued_s = fetched[0].value if fetched else row.t
    return Forecast(row.labels["provider"], region, basis, slots, issued_s)


def read_forecast_file(path: Path, basis: str) -> Forecast:
    """Return the forecast in a CSV file. Raises FetchError."""
    found = {past.basis: past for past in carbon_file.read_carbon_file(path)}
    if basis not in found:
        there = ", ".join(found)
        raise FetchError(
            f"{path} has no {basis} intensities, only {there}", f"give --basis {there}"
        )
    return Forecast(path.name, "", basis, found[basis].slots)
