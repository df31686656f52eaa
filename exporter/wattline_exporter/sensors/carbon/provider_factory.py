"""Carbon feeds from the settings: provider, region, secret and fallback.

Providers are imported when configured: all four take 3 MB of memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from wattline.contract.carbon.providers import PROVIDERS, TOKEN_VARIABLE, read_provider_secret
from wattline.contract.secret_file import SecretFileError
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import UsageError, check_url
from wattline_exporter.sensors.carbon.cache import CarbonCache
from wattline_exporter.sensors.carbon.feed import CarbonFeed, CarbonFeeds
from wattline_exporter.sensors.carbon.provider import CarbonProvider
from wattline_exporter.sensors.carbon.static import StaticIntensity

_UNUSED = "unused"
"""Secret of a provider that is not asked."""
_REMEDY = f"store it in a file for --carbon.token-file, or set {TOKEN_VARIABLE}"


def carbon_providers(settings: Settings) -> list[CarbonProvider]:
    """Return at most one provider per basis, none without a region. Raises UsageError."""
    providers = [
        found for found in (average_provider(settings), marginal_provider(settings)) if found
    ]
    if len({provider.basis for provider in providers}) < len(providers):
        raise UsageError(
            "--carbon.provider and --carbon.marginal-provider are both watttime; remove one"
        )
    return providers


def carbon_feeds(providers: Sequence[CarbonProvider], cache: CarbonCache | None) -> CarbonFeeds:
    """Return one feed per provider; without `cache` nothing is stored."""
    return CarbonFeeds(tuple(_feed(provider, cache) for provider in providers))


def _feed(provider: CarbonProvider, cache: CarbonCache | None) -> CarbonFeed:
    if provider.name == "static":
        return CarbonFeed(provider)
    return CarbonFeed(provider, fallback=static_fallback(provider), cache=cache)


def static_fallback(provider: CarbonProvider) -> StaticIntensity | None:
    """Return the yearly mean of the provider's country; None if it is unknown or the provider is
    marginal.
    """
    country = {"gb": "GBR", "electricitymaps": provider.region[:2]}.get(provider.name)
    if provider.name == "energy-charts":
        from wattline_exporter.sensors.carbon.energy_charts import static_country

        country = static_country(provider.region)
    try:
        return StaticIntensity.of_country(country) if country else None
    except ValueError:
        return None


def average_provider(settings: Settings) -> CarbonProvider | None:
    """Return the provider of --carbon.provider (marginal for watttime), None without one. Raises
    UsageError.
    """
    name, region = settings.carbon_provider, settings.carbon_region
    if name not in (None, *PROVIDERS):
        raise UsageError(
            f"--carbon.provider: unknown provider {name!r}; use one of {', '.join(PROVIDERS)}"
        )
    if settings.carbon_url is not None and (
        name in (None, "static") or settings.carbon_intensity is not None
    ):
        raise UsageError(
            "--carbon.url needs a --carbon.provider with a web API; add one, or remove --carbon.url"
        )
    if settings.carbon_shared is not None and (
        name in (None, "static") or settings.carbon_intensity is not None
    ):
        raise UsageError(
            "--carbon.shared needs a --carbon.provider with a web API, that of the other exporter; "
            "add it"
        )
    try:
        if settings.carbon_intensity is not None:
            return _constant(settings, settings.carbon_intensity)
        if name in (None, "static"):
            return _static(name, region)
        if region is None and name != "gb":
            see = f"list the regions with: exporter regions --carbon.provider {name}"
            raise UsageError(f"--carbon.provider {name} needs --carbon.region; {see}")
        return _web_provider(
            str(name), region, settings, check_url(settings.carbon_url, "--carbon.url")
        )
    except ValueError as error:
        raise UsageError(f"--carbon: {error}") from error


def _constant(settings: Settings, grams: float) -> CarbonProvider:
    if settings.carbon_provider not in (None, "static") or settings.carbon_region is not None:
        named = f" {settings.carbon_provider}" if settings.carbon_provider else ""
        raise UsageError(
            f"--carbon.intensity is a constant; remove --carbon.provider{named} and --carbon.region"
        )
    return StaticIntensity.constant(grams)


def _static(name: str | None, region: str | None) -> CarbonProvider | None:
    if region is None:
        if name is None:
            return None
        raise UsageError(
            "--carbon.provider static needs --carbon.region COUNTRY, or --carbon.intensity "
            "G_PER_KWH"
        )
    if name is None:
        from wattline_exporter.sensors.carbon import gb

        if gb.is_british_region(region):
            raise UsageError(
                f"--carbon.region {region!r} is a region of Great Britain; add --carbon.provider gb"
            )
    return StaticIntensity.of_country(region)


def marginal_provider(settings: Settings) -> CarbonProvider | None:
    """Return the provider of --carbon.marginal-provider, None without one. Raises UsageError."""
    name, region = settings.carbon_marginal_provider, settings.carbon_marginal_region
    if name is None:
        for option, value in (("region", region), ("url", settings.carbon_marginal_url)):
            if value is not None:
                remedy = "add it, or remove this option"
                raise UsageError(
                    f"--carbon.marginal-{option} needs --carbon.marginal-provider watttime; "
                    f"{remedy}"
                )
        return None
    if name != "watttime":
        raise UsageError(
            f"--carbon.marginal-provider: {name!r} has no marginal intensities; use watttime"
        )
    if region is None:
        raise UsageError(
            "--carbon.marginal-provider watttime needs --carbon.marginal-region, such as "
            "CAISO_NORTH"
        )
    try:
        return _web_provider(
            name, region, settings, check_url(settings.carbon_marginal_url, "--carbon.marginal-url")
        )
    except ValueError as error:
        raise UsageError(f"--carbon.marginal-region: {error}") from error


def _web_provider(
    name: str, region: str | None, settings: Settings, base_url: str | None
) -> CarbonProvider:
    """Return a provider with a web API, or its slots from --carbon.shared. Raises ValueError and
    UsageError.
    """
    provider = _own_provider(name, region, settings, base_url)
    if settings.carbon_shared is None:
        return provider
    from wattline_exporter.sensors.carbon.shared import SharedIntensities, is_url

    if is_url(settings.carbon_shared):
        check_url(settings.carbon_shared, "--carbon.shared")
    if base_url is not None:
        raise UsageError(
            "--carbon.shared replaces the requests to the provider; remove the URL of the provider"
        )
    return SharedIntensities(provider, settings.carbon_shared)


def _own_provider(
    name: str, region: str | None, settings: Settings, base_url: str | None
) -> CarbonProvider:
    """Return a provider with a web API; `region` is None for the whole country, which only gb
    supports.
    """
    if name == "gb":
        from wattline.contract.carbon.gb import NATIONAL
        from wattline_exporter.sensors.carbon import gb

        return gb.GbCarbonIntensity(region or NATIONAL, base_url)
    assert region is not None
    if name == "energy-charts":
        from wattline_exporter.sensors.carbon import energy_charts

        return energy_charts.EnergyCharts(region, base_url)
    if name == "electricitymaps":
        from wattline_exporter.sensors.carbon import electricity_maps

        return electricity_maps.ElectricityMaps(
            region, _UNUSED if settings.carbon_shared else required_token(settings), base_url
        )
    from wattline_exporter.sensors.carbon import watttime

    account = (_UNUSED, _UNUSED) if settings.carbon_shared else watttime_account(settings)
    return watttime.WattTime(region, *account, base_url=base_url)


def required_token(settings: Settings) -> str:
    token = provider_token(settings, "electricitymaps")
    if token is None:
        raise UsageError(f"electricitymaps needs a token; {_REMEDY}")
    return token


def watttime_account(settings: Settings) -> tuple[str, str]:
    """Return the user and password of WattTime. Raises UsageError."""
    user, colon, password = (provider_token(settings, "watttime") or "").partition(":")
    if not (user and colon and password):
        raise UsageError(f"watttime needs USER:PASSWORD; {_REMEDY}")
    return user, password


def provider_token(settings: Settings, provider: str) -> str | None:
    """Return the provider's secret from the file or the environment, None without one. Raises
    UsageError.
    """
    try:
        return read_provider_secret(settings.carbon_token_file, provider)
    except SecretFileError as error:
        raise UsageError(
            f"--carbon.token-file: {error}; store one line there, or one line PROVIDER=SECRET per "
            "provider, readable "
            "for the exporter's user"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
