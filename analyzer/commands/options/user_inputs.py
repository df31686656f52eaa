"""Options for inputs that no sensor measures: PUE, price, hardware, past carbon intensities."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from analyzer.commands.messages import print_message
from analyzer.model.user_inputs import Hardware, Price

if TYPE_CHECKING:
    from analyzer.model.emissions import Past
    from analyzer.model.samples import RunFrames
    from analyzer.sources.base import SampleSource

_HIGHEST_PUE = 10.0
_PROVIDERS = ("gb", "electricitymaps", "energy-charts")


@dataclass(frozen=True, slots=True)
class UserInputOptions:
    """Values as the user typed them, checked."""

    pue: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=_HIGHEST_PUE,
            metavar="RATIO",
            help="PUE (power usage effectiveness) of the facility: adds energy × PUE.",
        ),
    ] = None
    price: Annotated[float | None, typer.Option(min=0, metavar="MONEY", help="Price of a kWh: adds costs.")] = None
    currency: Annotated[str, typer.Option(metavar="NAME", help="Currency of --price, e.g. EUR.")] = ""
    embodied_kg: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="KG",
            help="Embodied emissions of all hardware that the run used, in kg CO2eq: adds the SCI.",
        ),
    ] = None
    lifetime_years: Annotated[
        float | None, typer.Option(metavar="YEARS", help="Expected lifetime of that hardware.")
    ] = None
    reserved_share: Annotated[
        float, typer.Option(min=0, max=1, metavar="RATIO", help="Share of that hardware that the run reserved.")
    ] = 1.0
    restate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER[:REGION]|FILE",
            help="Source of carbon intensities known now, to compute emissions again: gb, electricitymaps, "
            "energy-charts, or a CSV of time,g_per_kwh.",
        ),
    ] = None
    restate_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Base URL of that provider, in place of its public one.")
    ] = None
    carbon_token_file: Annotated[
        Path | None, typer.Option(help="File with the token of electricitymaps (default: WATTLINE_CARBON_TOKEN).")
    ] = None

    def __post_init__(self) -> None:
        self._refuse_infinite()
        if self.currency and self.price is None:
            raise typer.BadParameter("--currency has no effect without --price; add it, as in --price 0.31")
        if len(self.currency) > 8 or not self.currency.isprintable():
            raise typer.BadParameter(f"--currency: expected a short name such as EUR, not {self.currency!r}")
        if self.restate_url is not None and not re.fullmatch(r"https?://[^\s@?#]+", self.restate_url):
            raise typer.BadParameter("--restate-url: expected http://HOST/PATH or https://HOST/PATH")
        self._check_hardware()
        self._check_restate()

    @property
    def energy_price(self) -> Price | None:
        return None if self.price is None else Price(self.price, self.currency)

    @property
    def hardware(self) -> Hardware | None:
        if self.embodied_kg is None or self.lifetime_years is None:
            return None
        return Hardware(self.embodied_kg, self.lifetime_years, self.reserved_share)

    def _refuse_infinite(self) -> None:
        values = {
            "--pue": self.pue,
            "--price": self.price,
            "--embodied-kg": self.embodied_kg,
            "--lifetime-years": self.lifetime_years,
        }
        for name, value in values.items():
            if value is not None and not math.isfinite(value):
                raise typer.BadParameter(f"{name}: expected a finite number, not {value}")

    def _check_hardware(self) -> None:
        if (self.embodied_kg is None) != (self.lifetime_years is None):
            raise typer.BadParameter("the SCI needs both --embodied-kg and --lifetime-years; add the missing one")
        if self.lifetime_years is not None and not self.lifetime_years > 0:
            raise typer.BadParameter("--lifetime-years: expected more than 0, such as 4")

    def _check_restate(self) -> None:
        inputs = self.restate or []
        providers = [text for text in inputs if text.partition(":")[0] in _PROVIDERS]
        if len(providers) > 1:
            raise typer.BadParameter("--restate: average intensities of several providers cannot be added; name one")
        for text in inputs:
            if text not in providers and not Path(text).is_file():
                known = ", ".join(_PROVIDERS)
                raise typer.BadParameter(f"--restate: {text} is neither a provider ({known}) nor an existing file")


def load_restatement(
    options: UserInputOptions, source: SampleSource, frames: RunFrames
) -> tuple[RunFrames, tuple[Past, ...]]:
    """Return the intensities that --restate names, and the frames with the counters that they need.

    Raises FetchError.
    """
    if not options.restate:
        return frames, ()
    from analyzer.sources.carbon import past_intensity

    found = past_intensity.load_past_intensities(
        frames, options.restate, options.carbon_token_file, options.restate_url
    )
    for one in found:
        if one.problem:
            print_message(f"emissions not restated: {one.problem}; the report keeps the ledger's emissions")
    return past_intensity.with_cpu_counters(source, frames), found
