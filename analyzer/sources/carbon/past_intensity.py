"""Carbon intensities of a run's time as known now, and the counters to apply them to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from analyzer.model import timeline
from analyzer.model.emissions import Past
from analyzer.model.samples import RunFrames, joined, of
from analyzer.sources.base import FetchError, SampleSource
from analyzer.sources.carbon import file as carbon_file
from analyzer.sources.carbon import history as carbon_history
from exporter.contract import metrics as m


def load_past_intensities(
    frames: RunFrames, wanted: Sequence[str], token_file: Path | None = None, base_url: str | None = None
) -> tuple[Past, ...]:
    """Return the intensities of `PROVIDER`, `PROVIDER:REGION` or CSV files. Raises FetchError for a bad file.

    A provider's failure is the `problem` of its result.
    """
    windows = timeline.windows(frames.ledger, frames.run_id).values()
    start_s, end_s = min(window.start_s for window in windows), max(window.end_s for window in windows)
    found: list[Past] = []
    for text in wanted:
        name, _, region = text.partition(":")
        if name not in carbon_history.PROVIDERS:
            found += carbon_file.read_carbon_file(Path(text))
            continue
        try:
            token = carbon_history.read_provider_token(token_file, name) if name == "electricitymaps" else ""
        except carbon_history.PastIntensityError as error:
            found.append(Past(name, region, "average", problem=str(error)))
            continue
        request = carbon_history.PastIntensityRequest(name, region, base_url, token)
        run_regions = sorted(set(of(frames.raw, m.CARBON_INTENSITY, provider=name)["region"]))
        found.append(carbon_history.fetch_past_intensity(request, run_regions, start_s, end_s))
    bases = [past.basis for past in found]
    twice = next((basis for basis in bases if bases.count(basis) > 1), None)
    if twice:
        raise FetchError(
            f"--restate has two sources of {twice} intensities, which would be added up", "give one of them a basis"
        )
    return tuple(found)


def with_cpu_counters(source: SampleSource, frames: RunFrames) -> RunFrames:
    """Add the counters of CPU and DRAM energy, which give the energy of each intensity slot."""
    if not len(frames.raw):
        return frames
    start_s, end_s = float(frames.raw["t"].min()), float(frames.raw["t"].max())
    parts = [frames.raw]
    for instance in sorted(set(frames.raw["instance"])):
        where = {"instance": instance} if instance else {}
        parts += [source.fetch([m.CPU_ENERGY], {**where, "zone": zone}, start_s, end_s) for zone in ("package", "dram")]
    return replace(frames, raw=joined(parts))
