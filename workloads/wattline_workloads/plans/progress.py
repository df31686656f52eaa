"""Progress of a running plan: a live table, or log lines with the jobs' output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from wattline.client import messages
from wattline.client.api import Api, ExporterError
from wattline.client.messages import log_message, message_line
from wattline.command_line import escaped_line
from wattline.figures import short_text
from wattline_workloads.plans.child import ChildRun

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

POWER = "wattline_gpu_power_watts"
TEMPERATURE = "wattline_gpu_temperature_celsius"
_READ_EVERY_S = 1.0
_SHOWN_UNITS = 4


@dataclass(frozen=True, slots=True)
class GpuReading:
    """Latest power and temperature of a GPU; None if not exported."""

    gpu: str
    uuid: str
    power_w: float | None = None
    temperature_celsius: float | None = None


@dataclass(slots=True)
class WorkRates:
    """Work per second by unit, between two polls of the same runs."""

    _before: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def of(
        self, api: Api, run_ids: Iterable[str], now: Callable[[], float] = time.monotonic
    ) -> dict[str, float]:
        rates: dict[str, float] = {}
        for run_id in run_ids:
            try:
                work = api.get(f"/runs/{run_id}")["work"]
            except (ExporterError, KeyError):  # not started yet
                continue
            now_s = now()
            for unit, total in work.items():
                before_s, before = self._before.get((run_id, unit), (now_s, total))
                self._before[run_id, unit] = now_s, total
                if now_s > before_s:
                    rates[unit] = rates.get(unit, 0.0) + (total - before) / (now_s - before_s)
        return rates


def parse_gpus(text: str) -> list[GpuReading]:
    """Parse the text of /metrics."""
    from prometheus_client.parser import text_string_to_metric_families

    power_w: dict[tuple[str, str], float] = {}
    celsius: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        if family.name not in {POWER, TEMPERATURE}:
            continue
        for sample in family.samples:
            key = sample.labels["gpu"], sample.labels["uuid"]
            if family.name == POWER:
                power_w[key] = sample.value
            elif sample.labels.get("sensor") == "gpu":
                celsius[key] = sample.value
    keys = sorted({*power_w, *celsius}, key=lambda key: (len(key[0]), key))
    return [GpuReading(*key, power_w.get(key), celsius.get(key)) for key in keys]


def read_gpus(api: Api) -> list[GpuReading]:
    """Return the latest readings, empty if the exporter does not answer."""
    try:
        return parse_gpus(api.metrics())
    except (ExporterError, ValueError):
        return []


def hottest_celsius(readings: Sequence[GpuReading], wanted: Sequence[str] | None) -> float | None:
    """Return the highest temperature of the wanted GPUs (index or UUID; None: all), None without a
    reading.
    """
    shown = [
        each.temperature_celsius
        for each in readings
        if each.temperature_celsius is not None
        and (wanted is None or "all" in wanted or {each.gpu, each.uuid} & set(wanted))
    ]
    return max(shown, default=None)


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """Current step of a plan."""

    number: int
    """Number of the step, from 1."""
    count: int
    title: str
    activity: str
    left: Sequence[str] = ()
    """Titles of the remaining steps."""
    left_s: float | None = None
    """Estimated remaining time, None before the first step has ended."""


class ProgressDisplay(Protocol):
    """Display of a plan's progress."""

    @property
    def shows_output(self) -> bool:
        """True where the jobs' output is shown, with the summaries of their runs."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, now: PlanStatus) -> None:
        """Show the status if it has changed."""
        ...

    def follow(self, children: Sequence[ChildRun]) -> None:
        """Show new output and readings of the runs."""
        ...

    def say(self, text: str) -> None: ...


class ProgressLog:
    """Log output: a line per change, and the jobs' output as it arrives."""

    def __init__(self) -> None:
        self._shown_text = ""
        self._shows_output = True

    @property
    def shows_output(self) -> bool:
        return self._shows_output

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        pass

    def show(self, now: PlanStatus) -> None:
        text = f"{now.number}/{now.count} {now.title}: {now.activity}"
        if text != self._shown_text:
            log_message(text)
        self._shown_text = text

    def follow(self, children: Sequence[ChildRun]) -> None:
        for child in children:
            new = child.new_output()
            if new and self._shows_output:
                self._pass_on(new)

    def _pass_on(self, output: bytes) -> None:
        """Print output; a closed stdout does not abort the run."""
        try:
            sys.stdout.buffer.write(output)
            sys.stdout.flush()
        except OSError as error:
            self._shows_output = False
            messages.discard_stdout()
            log_message(
                f"cannot print the jobs' output: {error.strerror}; see output.log in each run's "
                "folder"
            )

    def say(self, text: str) -> None:
        log_message(text)


@dataclass(frozen=True, slots=True)
class LiveReadings:
    """Functions that read the live table's values."""

    gpus: Callable[[], list[GpuReading]]
    rates: Callable[[Sequence[str]], Mapping[str, float]]


class LiveTable:
    """Table on stderr; the jobs' output goes only to their folders."""

    shows_output = False

    def __init__(
        self,
        readings: LiveReadings,
        now_s: Callable[[], float] = time.monotonic,
        console: Console | None = None,
    ) -> None:
        self._readings = readings
        self._now_s = now_s
        self._console = console
        self._now: PlanStatus | None = None
        self._gpus: list[GpuReading] = []
        self._rates: Mapping[str, float] = {}
        self._read_s = -_READ_EVERY_S
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.console import Console
        from rich.live import Live

        console = self._console or Console(stderr=True)
        self._live = Live(console=console, get_renderable=self.table, refresh_per_second=2)
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave the final state on the terminal."""
        if self._live is None:
            return
        if self._now is not None:
            ended = "done" if kind is None else "stopped"
            self._now = replace(self._now, activity=ended, left_s=None)
        self._gpus = self._readings.gpus()
        self._rates = {}
        self._live.__exit__(kind, error, traceback)

    def show(self, now: PlanStatus) -> None:
        """Update the status; a change is drawn at once, so that short states are visible."""
        is_new = now != self._now
        self._now = now
        self._read([])
        if is_new and self._live is not None:
            self._live.refresh()

    def follow(self, children: Sequence[ChildRun]) -> None:
        self._read([child.run_id for child in children if child.ended_at is None])

    def say(self, text: str) -> None:
        if self._live is None:
            log_message(text)
        else:
            self._live.console.print(message_line(text), markup=False, highlight=False)

    def table(self) -> Table:
        """Return the table: current step, GPUs, rates, remaining steps."""
        from rich.table import Table

        now = self._now
        table = Table("", "", show_header=False, expand=False)
        if now is not None:
            table.add_row(f"{now.number}/{now.count}", escaped_line(f"{now.title}: {now.activity}"))
        for gpu in self._gpus:
            table.add_row(
                f"GPU {gpu.gpu}",
                f"{_number(gpu.power_w, 'W')}   {_number(gpu.temperature_celsius, '°C')}",
            )
        for unit, rate in sorted(self._rates.items(), key=_tokens_first)[:_SHOWN_UNITS]:
            table.add_row(f"{unit}/s", short_text(rate))
        if now is not None:
            left = f"{len(now.left)} more" + (
                f", about {_duration(now.left_s)}" if now.left_s is not None else ""
            )
            table.add_row("left", left + (f"; next: {now.left[0]}" if now.left else ""))
        else:
            table.add_row("", "reading GPUs and preparing the plan")
        return table

    def _read(self, run_ids: Sequence[str]) -> None:
        if self._now_s() - self._read_s < _READ_EVERY_S:
            return
        self._read_s = self._now_s()
        self._gpus = self._readings.gpus()
        self._rates = self._readings.rates(run_ids)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _number(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,.0f} {unit}"


def _tokens_first(rate: tuple[str, float]) -> tuple[bool, str]:
    return "tokens" not in rate[0], rate[0]


def open_progress(api: Api, *, live: bool) -> ProgressDisplay:
    """Return the live table, or the log where `live` is False."""
    if not live:
        return ProgressLog()
    rates = WorkRates()
    return LiveTable(LiveReadings(lambda: read_gpus(api), lambda run_ids: rates.of(api, run_ids)))
