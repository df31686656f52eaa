"""`exporter regions`: what `--carbon.region` takes."""

from __future__ import annotations

import aiohttp

from exporter.contract.carbon.credentials import PROVIDERS
from exporter.model import SourceError
from exporter.settings import OperationError, Settings, UsageError
from exporter.sources.carbon import electricity_maps, energy_charts, gb, static, watttime
from exporter.sources.carbon.config import account, token, url


async def regions(settings: Settings) -> list[str]:
    """A line a region of `settings.carbon_provider`. Raises UsageError and OperationError."""
    provider = settings.carbon_provider
    if provider == "gb":
        return [f"{gb.NATIONAL} Great Britain", *(f"{number:<2} {name}" for name, number in gb.REGIONS.items())]
    if provider == "energy-charts":
        return [f"{code:4} {name}" for code, name in energy_charts.COUNTRIES.items()]
    if provider == "static":
        return [
            f"{country.alpha_3 or '-':4} {country.name}: {country.grams_per_kwh:g} gCO2eq/kWh in {country.year}"
            for country in static.countries()
        ]
    if provider in PROVIDERS:
        try:
            found = await _asked(settings)
        except SourceError as error:
            raise OperationError(f"the regions of {provider} cannot be listed: {error}") from error
        width = max(map(len, found), default=0)
        return [f"{key:{width}} {name}".rstrip() for key, name in found.items()]
    raise UsageError(f"--carbon.provider: {provider!r} is not known; it is one of {', '.join(PROVIDERS)}")


async def _asked(settings: Settings) -> dict[str, str]:
    """The names of the regions that the provider itself lists."""
    base_url = url(settings.carbon_url, "--carbon.url")
    async with aiohttp.ClientSession() as session:
        if settings.carbon_provider == "electricitymaps":
            secret = token(settings, "electricitymaps")
            return await electricity_maps.zones(session, secret, base_url or electricity_maps.BASE_URL)
        return await watttime.regions(session, *account(settings), base_url or watttime.BASE_URL)
