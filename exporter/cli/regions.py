"""`exporter regions`: values of `--carbon.region`."""

from __future__ import annotations

import aiohttp

from exporter.config.settings import OperationError, Settings, UsageError, check_url
from exporter.contract.carbon.credentials import PROVIDERS
from exporter.contract.carbon.gb import NATIONAL
from exporter.model import SourceError
from exporter.sources.carbon import electricity_maps, energy_charts, gb, static, watttime
from exporter.sources.carbon.config import provider_token, watttime_account


async def list_provider_regions(settings: Settings) -> list[str]:
    """Return one line per region of `settings.carbon_provider`. Raises UsageError and OperationError."""
    provider = settings.carbon_provider
    if provider == "gb":
        return [f"{NATIONAL} Great Britain", *(f"{number:<2} {name}" for name, number in gb.REGIONS.items())]
    if provider == "energy-charts":
        return [f"{code:4} {name}" for code, name in energy_charts.COUNTRIES.items()]
    if provider == "static":
        return [
            f"{country.alpha_3 or '-':4} {country.name}: {country.grams_per_kwh:g} gCO2eq/kWh in {country.year}"
            for country in static.countries()
        ]
    if provider in PROVIDERS:
        try:
            found = await _fetch_regions(settings)
        except SourceError as error:
            raise OperationError(f"cannot list the regions of {provider}: {error}") from error
        width = max(map(len, found), default=0)
        return [f"{key:{width}} {name}".rstrip() for key, name in found.items()]
    raise UsageError(f"--carbon.provider: unknown provider {provider!r}; use one of {', '.join(PROVIDERS)}")


async def _fetch_regions(settings: Settings) -> dict[str, str]:
    """Return the name by key of the regions that the provider lists."""
    base_url = check_url(settings.carbon_url, "--carbon.url")
    async with aiohttp.ClientSession() as session:
        if settings.carbon_provider == "electricitymaps":
            secret = provider_token(settings, "electricitymaps")
            return await electricity_maps.list_zones(session, secret, base_url)
        return await watttime.list_regions(session, *watttime_account(settings), base_url)
