"""Carbon intensities that another exporter has fetched, so that one request serves a fleet."""

from __future__ import annotations

import asyncio
from pathlib import Path

from wattline_exporter.sensors.carbon.cache import FILE_NAME, MAX_BYTES, CarbonDocument
from wattline_exporter.sensors.carbon.provider import (
    Basis,
    CarbonProvider,
    ProviderError,
    Web,
    parse_body,
)
from wattline_exporter.sensors.readings import Slot

PATH = "/api/v1/carbon"


class SharedIntensities:
    """Intensities of `provider` from `source`: URL of an exporter, or path of a `carbon.json`.

    No request is sent to the provider itself. Its name, region and basis must be those of the
    slots.
    """

    def __init__(self, provider: CarbonProvider, source: str) -> None:
        self.name = provider.name
        self.region = provider.region
        self.basis: Basis = provider.basis
        self.base_url = source

    async def current(self, web: Web, now_s: float) -> list[Slot]:
        """Return the slots. Raises ProviderError, also for those of another provider or region."""
        del now_s
        document = await self._document(web)
        found = document.feeds.get(self.basis)
        if found is None:
            raise ProviderError(
                f"{self.base_url} has no {self.basis} intensities yet", "the request is repeated"
            )
        if (found.provider, found.region) != (self.name, self.region):
            there = f"{found.provider} for {found.region}"
            here = f"{self.name} for {self.region}"
            remedy = "use the same --carbon.provider and --carbon.region"
            cause = f"{self.base_url} has intensities of {there}, not of {here}"
            raise ProviderError(cause, remedy)
        return found.slots(self.basis)

    async def _document(self, web: Web) -> CarbonDocument:
        if is_url(self.base_url):
            return await web.get(PATH, CarbonDocument)
        try:
            body = await asyncio.to_thread(_read, Path(self.base_url))
        except OSError as error:
            remedy = f"give --carbon.shared the {FILE_NAME} of an exporter that runs"
            cause = f"cannot read {self.base_url}: {error.strerror}"
            raise ProviderError(cause, remedy) from error
        return parse_body(self.base_url, body, CarbonDocument)


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES)
