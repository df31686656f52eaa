"""Carbon providers that the options choose, with their regions, secrets and fallbacks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from wattline.contract.secret_file import SecretFileError
from wattline_exporter.config.values import OperationError, UsageError, check_url
from wattline_exporter.sensors.carbon.cache import CarbonCache
from wattline_exporter.sensors.carbon.feed import CarbonFeed, CarbonFeeds, IntensitySource
from wattline_exporter.sensors.carbon.options import CarbonOptions
from wattline_exporter.sensors.carbon.provider import (
    CarbonProvider,
    ProviderAccess,
    ProviderError,
    Web,
)
from wattline_exporter.sensors.carbon.providers import (
    TOKEN_VARIABLE,
    load_provider,
    provider_names,
    read_provider_secret,
)
from wattline_exporter.sensors.carbon.providers.static import ConstantIntensity, StaticIntensity
from wattline_exporter.sensors.carbon.shared import SharedIntensities, is_url
from wattline_exporter.sensors.carbon.transport import AiohttpTransport


@dataclass(frozen=True, slots=True)
class ChosenProvider:
    """A provider, the access to it, and the yearly mean that replaces it in an outage."""

    source: IntensitySource
    access: ProviderAccess
    fallback: StaticIntensity | None


def carbon_providers(options: CarbonOptions) -> list[ChosenProvider]:
    """Return at most one provider per basis, none without a region. Raises UsageError."""
    chosen = [found for found in (_average_provider(options), _marginal_provider(options)) if found]
    if len({one.source.basis for one in chosen}) < len(chosen):
        raise UsageError(
            f"--carbon.provider {options.provider} and --carbon.marginal-provider "
            f"{options.marginal_provider} are both marginal; remove one"
        )
    return chosen


def carbon_feeds(chosen: Sequence[ChosenProvider], cache: CarbonCache | None) -> CarbonFeeds:
    """Return one feed per provider; without `cache` nothing is stored."""
    return CarbonFeeds(
        tuple(
            CarbonFeed(
                one.source,
                access=one.access,
                fallback=one.fallback,
                cache=cache if one.source.base_url else None,
            )
            for one in chosen
        )
    )


async def list_regions(options: CarbonOptions) -> list[str]:
    """Return one line per region of `options.provider`. Raises UsageError and OperationError."""
    provider = _known_provider(str(options.provider), "--carbon.provider")
    secret = provider.secret
    access = ProviderAccess(
        check_url(options.url, "--carbon.url") or provider.base_url,
        _secret(provider, options, is_needed=bool(secret and secret.is_needed_for_regions)),
    )
    try:
        async with aiohttp.ClientSession() as session:
            regions = await provider.regions(Web(AiohttpTransport(session), access))
    except ProviderError as error:
        raise OperationError(f"cannot list the regions of {provider.name}: {error}") from error
    width = max((len(key) for key, _ in regions), default=0)
    return [f"{key:{width}} {name}".rstrip() for key, name in regions]


def _known_provider(name: str, option: str) -> type[CarbonProvider]:
    if name not in provider_names():
        known = ", ".join(provider_names())
        raise UsageError(f"{option}: unknown provider {name!r}; use one of {known}")
    return load_provider(name)


def _average_provider(options: CarbonOptions) -> ChosenProvider | None:
    """Return the provider of --carbon.provider, which may be a marginal one, None without one.

    Raises UsageError.
    """
    name = options.provider
    kind = _known_provider(name or StaticIntensity.name, "--carbon.provider")
    is_on_web = bool(kind.base_url) and options.intensity is None
    if options.url is not None and not is_on_web:
        raise UsageError(
            "--carbon.url needs a --carbon.provider with a web API; add one, or remove --carbon.url"
        )
    if options.shared is not None and not is_on_web:
        raise UsageError(
            "--carbon.shared needs a --carbon.provider with a web API, that of the other exporter; "
            "add it"
        )
    if options.intensity is not None:
        return _constant(options, options.intensity)
    if name is None and options.region is None:
        return None
    region = kind.default_region if options.region is None else options.region
    if region is None:
        constant = "" if kind.base_url else ", or --carbon.intensity G_PER_KWH"
        raise UsageError(
            f"--carbon.provider {name} needs --carbon.region{constant}; list the regions with: "
            f"exporter regions --carbon.provider {name}"
        )
    try:
        provider = kind(region)
    except ValueError as error:
        owner = _owner(region) if name is None else None
        if owner is not None:
            raise UsageError(
                f"--carbon.region {region!r} is a region of {owner}; add --carbon.provider {owner}"
            ) from None
        raise UsageError(f"--carbon: {error}") from error
    return _choose(provider, options, check_url(options.url, "--carbon.url"))


def _constant(options: CarbonOptions, grams_per_kwh: float) -> ChosenProvider:
    if options.provider not in (None, StaticIntensity.name) or options.region is not None:
        named = f" {options.provider}" if options.provider else ""
        raise UsageError(
            f"--carbon.intensity is a constant; remove --carbon.provider{named} and --carbon.region"
        )
    try:
        return ChosenProvider(ConstantIntensity(grams_per_kwh), ProviderAccess(), None)
    except ValueError as error:
        raise UsageError(f"--carbon: {error}") from error


def _owner(region: str) -> str | None:
    """Return the provider to which the region belongs, None if any or none may have it."""
    return next((name for name in provider_names() if load_provider(name).owns(region)), None)


def _marginal_provider(options: CarbonOptions) -> ChosenProvider | None:
    """Return the provider of --carbon.marginal-provider, None without one. Raises UsageError."""
    name = options.marginal_provider
    region = options.marginal_region
    if name is None:
        for option, value in (("region", region), ("url", options.marginal_url)):
            if value is not None:
                raise UsageError(
                    f"--carbon.marginal-{option} needs --carbon.marginal-provider "
                    f"{_marginal_names()}; add it, or remove this option"
                )
        return None
    kind = _known_provider(name, "--carbon.marginal-provider")
    if kind.basis != "marginal":
        raise UsageError(
            f"--carbon.marginal-provider: {name!r} has no marginal intensities; use "
            f"{_marginal_names()}"
        )
    region = kind.default_region if region is None else region
    if region is None:
        raise UsageError(
            f"--carbon.marginal-provider {name} needs --carbon.marginal-region; list the regions "
            f"with: exporter regions --carbon.provider {name}"
        )
    try:
        provider = kind(region)
    except ValueError as error:
        raise UsageError(f"--carbon.marginal-region: {error}") from error
    return _choose(provider, options, check_url(options.marginal_url, "--carbon.marginal-url"))


def _marginal_names() -> str:
    return "|".join(name for name in provider_names() if load_provider(name).basis == "marginal")


def _choose(provider: CarbonProvider, options: CarbonOptions, url: str | None) -> ChosenProvider:
    """Return the provider, or another exporter's slots of it. Raises UsageError."""
    fallback = _country_mean(provider)
    if options.shared is None:
        secret = _secret(type(provider), options, is_needed=provider.secret is not None)
        return ChosenProvider(provider, ProviderAccess(url or provider.base_url, secret), fallback)
    if is_url(options.shared):
        check_url(options.shared, "--carbon.shared")
    if url is not None:
        raise UsageError(
            "--carbon.shared replaces the requests to the provider; remove the URL of the provider"
        )
    shared = SharedIntensities(provider, options.shared)
    return ChosenProvider(shared, ProviderAccess(options.shared), fallback)


def _country_mean(provider: CarbonProvider) -> StaticIntensity | None:
    """Return the yearly mean of the provider's country.

    None if the country is unknown or without a mean, or the provider is marginal.
    """
    country = provider.country()
    if country is None or provider.basis != StaticIntensity.basis:
        return None
    try:
        return StaticIntensity(country)
    except ValueError:
        return None


def _secret(provider: type[CarbonProvider], options: CarbonOptions, *, is_needed: bool) -> str:
    """Return the secret from the file or the environment, empty without one.

    Raises UsageError, also if a secret that is needed is missing.
    """
    if provider.secret is None:
        return ""
    try:
        secret = read_provider_secret(options.token_file, provider.name)
    except SecretFileError as error:
        raise UsageError(
            f"--carbon.token-file: {error}; store one line there, or one line PROVIDER=SECRET per "
            "provider, readable for the exporter's user"
        ) from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    if is_needed and not re.fullmatch(provider.secret.pattern, secret):
        raise UsageError(
            f"{provider.name} needs {provider.secret.form}; store it in a file for "
            f"--carbon.token-file, or set {TOKEN_VARIABLE}"
        )
    return secret
