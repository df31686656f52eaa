"""Options of carbon providers, which `serve`, `check` and `regions` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wattline.contract.carbon.providers import PROVIDERS

ProviderOption = Annotated[
    str | None,
    typer.Option(
        "--carbon.provider",
        help="Provider of carbon intensities: marginal ones from watttime, average ones from the "
        "others.",
        metavar="|".join(PROVIDERS),
    ),
]
CarbonUrlOption = Annotated[
    str | None,
    typer.Option(
        "--carbon.url",
        help="Alternative URL of the provider's API, such as a proxy's.",
        metavar="URL",
    ),
]
CarbonTokenOption = Annotated[
    Path | None,
    typer.Option(
        "--carbon.token-file",
        help="File with the token of electricitymaps, USER:PASSWORD of watttime, or one line "
        "PROVIDER=SECRET for each; "
        "default: WATTLINE_CARBON_TOKEN.",
        metavar="FILE",
    ),
]
