"""Options of `analyzer report`: run or time range, and inputs that no sensor measures."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wattline_analyzer.core.options import NO_RUN_OR_RANGE, moment_option
from wattline_analyzer.core.printing import exists, print_message
from wattline_analyzer.report.untagged.request import AUTO, SCHEMA_NAMES, TOKEN_SERVER_NAMES
from wattline_exporter.sensors.carbon.providers import (
    TOKEN_VARIABLE,
    load_provider,
    provider_names,
)

if TYPE_CHECKING:
    from wattline_analyzer.core.emissions import Hardware, PastIntensities
    from wattline_analyzer.core.recorded_run import RecordedRun
    from wattline_analyzer.core.run_report import Price
    from wattline_analyzer.core.sources.base import SampleSource
    from wattline_analyzer.report.untagged.request import RangeRequest

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ZONES = ("package", "dram")
_HIGHEST_PUE = 10.0
_HIGHEST = 1e9
_SHORTEST_YEARS = 0.01


@dataclass(frozen=True, slots=True)
class RunOrRangeOptions:
    """The run's id, or a time range and its filters, as the user typed them."""

    run_id: Annotated[
        str | None, typer.Option(metavar="ID", help="ID of the run; `analyzer runs` lists them.")
    ] = None
    start: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN",
            help="Start of a time range without a run, in place of --run-id: ISO 8601, Unix s, "
            "-2h.",
        ),
    ] = None
    end: Annotated[
        str | None,
        typer.Option(
            metavar="WHEN", help="End of the range: as --start, or now (default: last scrape)."
        ),
    ] = None
    node: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Nodes of the range, by host name or scraped address."),
    ] = None
    gpus: Annotated[
        str | None, typer.Option(metavar="0,1|UUID,…", help="GPUs of the range (default: all).")
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="|".join((AUTO, *SCHEMA_NAMES)), help="Exporter whose series to read."
        ),
    ] = None
    matching: Annotated[
        str | None,
        typer.Option(
            metavar="'LABEL=\"VALUE\"'", help="Labels that all series of the range must have."
        ),
    ] = None
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(TOKEN_SERVER_NAMES),
            help="Kind of LLM server whose counters give the work.",
        ),
    ] = None
    tokens_matching: Annotated[
        str | None,
        typer.Option(
            metavar="'LABEL=\"VALUE\"'", help="Labels that all series of the servers must have."
        ),
    ] = None
    rapl_range_joules: Annotated[
        str | None,
        typer.Option(
            metavar="J|ZONE=J,…", help="Energy at which node-exporter's RAPL counters wrap."
        ),
    ] = None

    def request(self) -> str | RangeRequest:
        """Return the run's id, or the request for a range. Raises typer.BadParameter."""
        if self.start is None:
            return self._checked_run_id()
        if self.run_id is not None:
            raise typer.BadParameter("--run-id and --start exclude each other: give one of them")
        from wattline_analyzer.report.untagged.request import RangeRequest

        start_s, end_s = self._limits(self.start)
        return RangeRequest(
            start_s,
            end_s,
            _node_pattern(self.node),
            tuple(filter(None, (part.strip() for part in (self.gpus or "").split(",")))),
            _one_of(self.schema or AUTO, (AUTO, *SCHEMA_NAMES), "--schema"),
            _labels(self.matching, "--matching"),
            _one_of(self.tokens, TOKEN_SERVER_NAMES, "--tokens") if self.tokens else None,
            _labels(self.tokens_matching, "--tokens-matching"),
            _rapl_ranges(self.rapl_range_joules),
            until_now=(self.end or "now").strip() == "now",
        )

    def _checked_run_id(self) -> str:
        range_options = {
            "--end": self.end,
            "--node": self.node,
            "--gpus": self.gpus,
            "--schema": self.schema,
            "--matching": self.matching,
            "--tokens": self.tokens,
            "--tokens-matching": self.tokens_matching,
            "--rapl-range-joules": self.rapl_range_joules,
        }
        used = [name for name, value in range_options.items() if value is not None]
        if used:
            raise typer.BadParameter(
                f"{used[0]} is for a time range without a run: also give --start"
            )
        if self.run_id is None:
            raise typer.BadParameter(NO_RUN_OR_RANGE)
        return self.run_id

    def _limits(self, start: str) -> tuple[float, float]:
        now_s = time.time()
        start_s = moment_option(start, "--start", now_s)
        end_s = moment_option(self.end or "now", "--end", now_s)
        if end_s <= start_s:
            raise typer.BadParameter(
                "--end is not after --start"
                if self.end
                else "--start is not before now, which is the end of a range without --end"
            )
        if end_s > now_s + 1:
            raise typer.BadParameter(f"--end: {self.end} lies in the future; give a time up to now")
        return start_s, end_s


def _node_pattern(text: str | None) -> str | None:
    try:
        re.compile(text or "")
    except re.error as error:
        raise typer.BadParameter(
            f"--node: expected a regular expression, not {text!r}: {error}"
        ) from error
    return text


def _one_of(text: str, names: Iterable[str], option: str) -> str:
    known = tuple(names)
    if text not in known:
        raise typer.BadParameter(f"{option}: expected one of {', '.join(known)}, not {text!r}")
    return text


def _labels(text: str | None, option: str) -> dict[str, str]:
    rest = (text or "").strip().removeprefix("{").removesuffix("}")
    found = {}
    while rest:
        match = _LABEL.match(rest)
        if not match:
            raise typer.BadParameter(
                f'{option}: expected label="value", or several with commas, not {text!r}'
            )
        found[match[1]] = re.sub(r"\\(.)", r"\1", match[2])
        rest = rest[match.end() :]
    return found


def _rapl_ranges(text: str | None) -> dict[str, float]:
    """Return joules by zone; a single number applies to all zones."""
    found: dict[str, float] = {}
    for part in filter(None, (text or "").split(",")):
        zone, equals, number = part.rpartition("=")
        try:
            joules = float(number)
        except ValueError:
            joules = 0.0
        if joules <= 0 or (equals and zone not in _ZONES):
            raise typer.BadParameter(
                f"--rapl-range-joules: expected joules, or package=J,dram=J, not {text!r}"
            )
        found |= {zone: joules} if equals else dict.fromkeys(_ZONES, joules)
    return found


PriceOption = Annotated[
    float | None, typer.Option(min=0, metavar="MONEY", help="Price of a kWh, to add costs.")
]
CurrencyOption = Annotated[str, typer.Option(metavar="NAME", help="Currency of --price, e.g. EUR.")]


def price_options(price: float | None, currency: str) -> Price | None:
    """Return the price of a kWh. Raises typer.BadParameter."""
    _check_size("--price", price)
    if currency and price is None:
        raise typer.BadParameter(
            "--currency has no effect without --price; add it, as in --price 0.31"
        )
    if len(currency) > 8 or not currency.isprintable():
        raise typer.BadParameter(f"--currency: expected a short name such as EUR, not {currency!r}")
    from wattline_analyzer.core.run_report import Price

    return None if price is None else Price(price, currency)


def _check_size(name: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{name}: expected a finite number, not {value}")
    if value is not None and value > _HIGHEST:
        raise typer.BadParameter(f"{name}: expected at most {_HIGHEST:g}, not {value:g}")


@dataclass(frozen=True, slots=True)
class UserInputOptions:
    """Values as the user typed them, checked."""

    pue: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=_HIGHEST_PUE,
            metavar="RATIO",
            help="PUE (power usage effectiveness) of the facility, to add energy × PUE.",
        ),
    ] = None
    price: PriceOption = None
    currency: CurrencyOption = ""
    embodied_kg: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="KG",
            help="Embodied emissions of all hardware that the run used, in kg CO2eq, to add the "
            "SCI.",
        ),
    ] = None
    lifetime_years: Annotated[
        float | None, typer.Option(metavar="YEARS", help="Expected lifetime of that hardware.")
    ] = None
    reserved_share: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="RATIO", help="Share of that hardware that the run reserved."
        ),
    ] = 1.0
    restate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER[:REGION]|FILE",
            help="Source of carbon intensities known now, to compute emissions again: "
            f"{', '.join(provider_names())}, or a CSV of time,g_per_kwh.",
        ),
    ] = None
    restate_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of that provider, in place of its public one."),
    ] = None
    carbon_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the secret of that provider, a token or USER:PASSWORD (default: "
            f"{TOKEN_VARIABLE}).",
        ),
    ] = None

    def __post_init__(self) -> None:
        self._check_sizes()
        price_options(self.price, self.currency)
        if self.restate_url is not None and not re.fullmatch(
            r"https?://[^\s@?#]+", self.restate_url
        ):
            raise typer.BadParameter(
                "--restate-url: expected http://HOST/PATH or https://HOST/PATH"
            )
        self._check_hardware()
        self._check_restate()

    @property
    def energy_price(self) -> Price | None:
        return price_options(self.price, self.currency)

    @property
    def hardware(self) -> Hardware | None:
        if self.embodied_kg is None or self.lifetime_years is None:
            return None
        from wattline_analyzer.core.emissions import Hardware

        return Hardware(self.embodied_kg, self.lifetime_years, self.reserved_share)

    def _check_sizes(self) -> None:
        _check_size("--pue", self.pue)
        _check_size("--price", self.price)
        _check_size("--embodied-kg", self.embodied_kg)
        _check_size("--lifetime-years", self.lifetime_years)

    def _check_hardware(self) -> None:
        if (self.embodied_kg is None) != (self.lifetime_years is None):
            raise typer.BadParameter(
                "the SCI needs both --embodied-kg and --lifetime-years; add the missing one"
            )
        if self.lifetime_years is not None and self.lifetime_years < _SHORTEST_YEARS:
            raise typer.BadParameter(
                f"--lifetime-years: expected at least {_SHORTEST_YEARS:g}, such as 4"
            )

    def _check_restate(self) -> None:
        inputs = self.restate or []
        known_names = provider_names()
        providers = [text for text in inputs if text.partition(":")[0] in known_names]
        bases = [load_provider(text.partition(":")[0]).basis for text in providers]
        for basis in bases:
            if bases.count(basis) > 1:
                raise typer.BadParameter(
                    f"--restate: {basis} intensities of several providers cannot be added; name one"
                )
        for text in inputs:
            if text not in providers and not (exists(Path(text)) and Path(text).is_file()):
                known = ", ".join(known_names)
                raise typer.BadParameter(
                    f"--restate: {text} is neither a provider ({known}) nor an existing file"
                )


def load_restatement(
    options: UserInputOptions, source: SampleSource, recorded: RecordedRun
) -> tuple[RecordedRun, tuple[PastIntensities, ...]]:
    """Return the intensities that --restate names, and the run with the counters that they need.

    Raises FetchError.
    """
    if not options.restate:
        return recorded, ()
    from wattline_analyzer.carbon import fetch as past_intensity

    intensities = past_intensity.load_past_intensities(
        recorded, options.restate, options.carbon_token_file, options.restate_url
    )
    for one in intensities:
        if one.problem:
            print_message(
                f"emissions not restated: {one.problem}; the report keeps the ledger's emissions"
            )
        if one.dropped:
            print_message(f"invalid slots of {one.provider} were dropped: {one.dropped}")
    return past_intensity.with_energy_counters(source, recorded), intensities
