"""Settings to carbon feeds: which provider, which region, which secret, and what counts while it does not answer.

Providers are imported where they are asked for: all four together take 3 MB.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from exporter.contract.carbon.credentials import PROVIDERS, TOKEN_VARIABLE, read_provider_secret
from exporter.contract.secret_file import SecretFileError
from exporter.settings import Settings, UsageError
from exporter.sources.carbon.cache import CarbonCache
from exporter.sources.carbon.feed import CarbonFeed, CarbonFeeds
from exporter.sources.carbon.provider import Provider
from exporter.sources.carbon.static import StaticIntensity

_HOW = f"put it into a file for --carbon.token-file, or into {TOKEN_VARIABLE}"


def carbon_providers(settings: Settings) -> list[Provider]:
    """At most one a basis; none where no region is set: then there are no grams. Raises UsageError."""
    providers = [given for given in (average_provider(settings), marginal_provider(settings)) if given]
    if len({provider.basis for provider in providers}) < len(providers):
        raise UsageError("--carbon.provider and --carbon.marginal-provider are both watttime: leave out one")
    return providers


def carbon_feeds(providers: Sequence[Provider], cache: CarbonCache | None) -> CarbonFeeds:
    """A feed a provider; `cache` is that of the state folder, or None to keep nothing."""
    return CarbonFeeds(tuple(_feed(provider, cache) for provider in providers))


def _feed(provider: Provider, cache: CarbonCache | None) -> CarbonFeed:
    if provider.name == "static":
        return CarbonFeed(provider)
    return CarbonFeed(provider, fallback=fallback(provider), cache=cache)


def fallback(provider: Provider) -> StaticIntensity | None:
    """The yearly mean of the provider's country; none where it has none in the table, nor for marginals."""
    country = {"gb": "GBR", "electricitymaps": provider.region[:2]}.get(provider.name)
    if provider.name == "energy-charts":
        from exporter.sources.carbon.energy_charts import static_country

        country = static_country(provider.region)
    try:
        return StaticIntensity.of_country(country) if country else None
    except ValueError:
        return None


def average_provider(settings: Settings) -> Provider | None:
    """That of --carbon.provider, which is marginal if it is watttime; None where none is set. Raises UsageError."""
    name, region = settings.carbon_provider, settings.carbon_region
    if name not in (None, *PROVIDERS):
        raise UsageError(f"--carbon.provider: {name!r} is not known; it is one of {', '.join(PROVIDERS)}")
    if settings.carbon_url is not None and (name in (None, "static") or settings.carbon_intensity is not None):
        raise UsageError("--carbon.url does nothing without a --carbon.provider that is asked over the web; add one")
    try:
        if settings.carbon_intensity is not None:
            return _constant(settings, settings.carbon_intensity)
        if name in (None, "static"):
            return _static(name, region)
        if region is None and name != "gb":
            see = f"try: exporter regions --carbon.provider {name}"
            raise UsageError(f"--carbon.provider {name} needs --carbon.region; {see}")
        return _of_web(str(name), region, settings, url(settings.carbon_url, "--carbon.url"))
    except ValueError as error:
        raise UsageError(f"--carbon: {error}") from error


def _constant(settings: Settings, grams: float) -> Provider:
    if settings.carbon_provider not in (None, "static") or settings.carbon_region is not None:
        named = f" {settings.carbon_provider}" if settings.carbon_provider else ""
        raise UsageError(f"--carbon.intensity is a constant: leave out --carbon.provider{named} and --carbon.region")
    return StaticIntensity.constant(grams)


def _static(name: str | None, region: str | None) -> Provider | None:
    if region is None:
        if name is None:
            return None
        raise UsageError("--carbon.provider static needs --carbon.region COUNTRY, or --carbon.intensity G_PER_KWH")
    if name is None:
        from exporter.sources.carbon import gb

        if gb.knows(region):
            raise UsageError(f"--carbon.region {region!r} is a region of Great Britain: add --carbon.provider gb")
    return StaticIntensity.of_country(region)


def marginal_provider(settings: Settings) -> Provider | None:
    """That of --carbon.marginal-provider. Raises UsageError."""
    name, region = settings.carbon_marginal_provider, settings.carbon_marginal_region
    if name is None:
        for option, given in (("region", region), ("url", settings.carbon_marginal_url)):
            if given is not None:
                raise UsageError(f"--carbon.marginal-{option} does nothing without --carbon.marginal-provider watttime")
        return None
    if name != "watttime":
        raise UsageError(f"--carbon.marginal-provider: expected watttime, the one with marginals, not {name!r}")
    if region is None:
        raise UsageError("--carbon.marginal-provider watttime needs --carbon.marginal-region, such as CAISO_NORTH")
    try:
        return _of_web(name, region, settings, url(settings.carbon_marginal_url, "--carbon.marginal-url"))
    except ValueError as error:
        raise UsageError(f"--carbon.marginal-region: {error}") from error


def _of_web(name: str, region: str | None, settings: Settings, base_url: str | None) -> Provider:
    """`region` is None for the whole country, which only gb has."""
    if name == "gb":
        from exporter.sources.carbon import gb

        return gb.GbCarbonIntensity(region or gb.NATIONAL, base_url or gb.BASE_URL)
    assert region is not None
    if name == "energy-charts":
        from exporter.sources.carbon import energy_charts

        return energy_charts.EnergyCharts(region, base_url or energy_charts.BASE_URL)
    if name == "electricitymaps":
        from exporter.sources.carbon import electricity_maps

        return electricity_maps.ElectricityMaps(region, needed_token(settings), base_url or electricity_maps.BASE_URL)
    from exporter.sources.carbon import watttime

    return watttime.WattTime(region, *account(settings), base_url=base_url or watttime.BASE_URL)


def url(given: str | None, option: str) -> str | None:
    """Raises UsageError for what cannot be one, and where it has a password, which would be printed."""
    if given is None:
        return None
    if not re.fullmatch(r"https?://[^\s@?#]+", given):
        raise UsageError(f"{option}: expected http://HOST/PATH or https://HOST/PATH, without a user, a query or a '#'")
    return given


def needed_token(settings: Settings) -> str:
    found = token(settings, "electricitymaps")
    if found is None:
        raise UsageError(f"electricitymaps needs its token; {_HOW}")
    return found


def account(settings: Settings) -> tuple[str, str]:
    """User and password at WattTime. Raises UsageError."""
    user, colon, password = (token(settings, "watttime") or "").partition(":")
    if not (user and colon and password):
        raise UsageError(f"watttime needs USER:PASSWORD; {_HOW}")
    return user, password


def token(settings: Settings, provider: str) -> str | None:
    """Return the provider's secret from the file or the environment, None without one. Raises UsageError."""
    try:
        return read_provider_secret(settings.carbon_token_file, provider)
    except SecretFileError as error:
        raise UsageError(
            f"--carbon.token-file: {error}; store one line there, or one line PROVIDER=SECRET per provider, readable "
            "for the exporter's user"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
