"""Options of carbon intensities; `check` has those of `serve`, `regions` some of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from wattline_exporter.sensors.carbon.providers import TOKEN_VARIABLE, provider_names

ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--carbon.provider",
        help="Provider of carbon intensities; `exporter regions` lists its regions.",
        metavar="|".join(provider_names()),
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--carbon.url",
        help="Alternative URL of the provider's API, such as a proxy's.",
        metavar="URL",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--carbon.token-file",
        help="File with the provider's secret, a token or USER:PASSWORD, or with one line "
        f"PROVIDER=SECRET for each provider; default: {TOKEN_VARIABLE}.",
        metavar="FILE",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class CarbonOptions:
    """Values of the options, in the order of --help."""

    provider: ProviderOption = None
    region: Annotated[
        str | None,
        typer.Option(
            "--carbon.region",
            help="Region of the provider, such as GB, a postcode or a country; see `exporter "
            "regions`.",
            metavar="REGION",
        ),
    ] = None
    intensity: Annotated[
        float | None,
        typer.Option(
            "--carbon.intensity", help="Constant intensity in gCO2eq/kWh.", metavar="G_PER_KWH"
        ),
    ] = None
    url: UrlOption = None
    shared: Annotated[
        str | None,
        typer.Option(
            "--carbon.shared",
            help="Exporter, or its file carbon.json, that has fetched the intensities of the same "
            "provider and region.",
            metavar="URL|FILE",
        ),
    ] = None
    token_file: TokenFileOption = None
    marginal_provider: Annotated[
        str | None,
        typer.Option(
            "--carbon.marginal-provider",
            help="Provider of marginal intensities, such as watttime, in addition to average ones.",
            metavar="PROVIDER",
        ),
    ] = None
    marginal_region: Annotated[
        str | None,
        typer.Option(
            "--carbon.marginal-region",
            help="Region of the marginal provider, such as CAISO_NORTH, or LATITUDE,LONGITUDE.",
            metavar="REGION",
        ),
    ] = None
    marginal_url: Annotated[
        str | None,
        typer.Option(
            "--carbon.marginal-url",
            help="Alternative URL of the marginal provider's API.",
            metavar="URL",
        ),
    ] = None
