"""Options by which the user tells what no sensor knows: facility, price, hardware made, intensities of the past."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from analyzer.commands.options.connection import Connection, say
from analyzer.model.cost import Price
from analyzer.model.hardware import Hardware

if TYPE_CHECKING:
    from analyzer.carbon.intensity import Past
    from analyzer.model.samples import RunFrames
    from analyzer.sources.base import Source

P = ParamSpec("P")
_MOST_PUE = 10.0
_PROVIDERS = ("gb", "electricitymaps", "energy-charts")


@dataclass(frozen=True, slots=True)
class Told:
    """As the user gave it, checked."""

    pue: float | None = None
    price: Price | None = None
    hardware: Hardware | None = None
    restate: tuple[str, ...] = ()
    restate_url: str | None = None
    carbon_token_file: Path | None = None


def read_again(told: Told, source: Source, frames: RunFrames) -> tuple[RunFrames, tuple[Past, ...]]:
    """What --restate asks for: the frames with what it takes, and the intensities. Raises SourceError."""
    if not told.restate:
        return frames, ()
    from analyzer.sources.carbon import restating

    found = restating.pasts(frames, told.restate, told.carbon_token_file, told.restate_url)
    for one in found:
        if one.problem:
            say(f"not restated: {one.problem}; the ledger's grams stand")
    return restating.with_cpu_counters(source, frames), found


def _options(  # a command's options are its arguments
    pue: Annotated[
        float | None,
        typer.Option(
            min=1, max=_MOST_PUE, metavar="RATIO", help="The facility's power usage effectiveness: adds energy × PUE."
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, metavar="MONEY", help="Price of a kWh: adds costs.")] = None,
    currency: Annotated[str, typer.Option(metavar="NAME", help="Of --price, such as EUR.")] = "",
    embodied_kg: Annotated[
        float | None,
        typer.Option(min=0, metavar="KG", help="CO2eq of making all hardware the run used: adds the SCI."),
    ] = None,
    lifetime_years: Annotated[
        float | None, typer.Option(metavar="YEARS", help="How long that hardware is expected to serve.")
    ] = None,
    reserved_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="RATIO", help="The part of it that the run reserved.")
    ] = 1.0,
    restate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER[:REGION]|FILE",
            help="Emissions by what is known now: gb, electricitymaps, energy-charts, or a CSV of time,g_per_kwh.",
        ),
    ] = None,
    restate_url: Annotated[str | None, typer.Option(metavar="URL", help="Another address of that provider.")] = None,
    carbon_token_file: Annotated[
        Path | None, typer.Option(help="File with the token of electricitymaps; else WATTLINE_CARBON_TOKEN.")
    ] = None,
) -> Told:
    _refuse_infinite({"--pue": pue, "--price": price, "--embodied-kg": embodied_kg, "--lifetime-years": lifetime_years})
    if currency and price is None:
        raise typer.BadParameter(
            "--currency names the money of --price, which is not given; add it, as in --price 0.31"
        )
    if len(currency) > 8 or not currency.isprintable():
        raise typer.BadParameter(f"--currency is a short name, as EUR, not {currency!r}")
    if restate_url is not None and not re.fullmatch(r"https?://[^\s@?#]+", restate_url):
        raise typer.BadParameter("--restate-url is http://HOST/PATH or https://HOST/PATH")
    return Told(
        pue,
        None if price is None else Price(price, currency),
        _hardware(embodied_kg, lifetime_years, reserved_share),
        _restate(tuple(restate or ())),
        restate_url,
        carbon_token_file,
    )


def _refuse_infinite(given: Mapping[str, float | None]) -> None:
    for name, value in given.items():
        if value is not None and not math.isfinite(value):
            raise typer.BadParameter(f"{name} is a number, not {value}")


def _hardware(embodied_kg: float | None, lifetime_years: float | None, reserved_share: float) -> Hardware | None:
    if embodied_kg is None and lifetime_years is None:
        return None
    if embodied_kg is None or lifetime_years is None:
        raise typer.BadParameter("the SCI needs both --embodied-kg and --lifetime-years; add the other one")
    if not lifetime_years > 0:
        raise typer.BadParameter("--lifetime-years is more than 0, such as 4")
    return Hardware(embodied_kg, lifetime_years, reserved_share)


def _restate(wanted: tuple[str, ...]) -> tuple[str, ...]:
    providers = [text for text in wanted if text.partition(":")[0] in _PROVIDERS]
    if len(providers) > 1:
        raise typer.BadParameter("--restate: all providers give average intensities, which are not added up; name one")
    for text in wanted:
        if text not in providers and not Path(text).is_file():
            known = ", ".join(_PROVIDERS)
            raise typer.BadParameter(f"--restate: {text} is no provider ({known}), and there is no such file")
    return wanted


def tells(command: Callable[Concatenate[Connection, Told, P], None]) -> Callable[Concatenate[Connection, P], None]:
    """A command with the options of a Told in place of its second parameter; goes below `reads`."""
    theirs = inspect.signature(_options, eval_str=True).parameters
    first, _, *mine = inspect.signature(command, eval_str=True).parameters.values()

    @wraps(command)
    def with_options(connection: Connection, **given: Any) -> None:
        told = _options(**{name: given.pop(name) for name in theirs})
        command(connection, told, **given)  # type: ignore[call-arg]  # typer gives names

    last_first = sorted([*mine, *theirs.values()], key=lambda parameter: parameter.default is not parameter.empty)
    with_options.__signature__ = inspect.Signature([first, *last_first])  # type: ignore[attr-defined]  # functions take any attribute
    return with_options  # type: ignore[return-value]  # what typer calls by names
