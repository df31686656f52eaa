"""Carbon intensities that another exporter has fetched, so that one request serves a fleet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp

from wattline.contract.carbon.responses import Basis
from wattline_exporter.sensors.carbon.cache import FILE_NAME, MAX_BYTES, CarbonDocument
from wattline_exporter.sensors.carbon.provider import CarbonApi, CarbonProvider, parse_body
from wattline_exporter.sensors.readings import Slot, SourceError

PATH = "/api/v1/carbon"


class SharedIntensities:
    """Provider whose slots come from `source`: the URL of an exporter, or the path of a
    `carbon.json`.

    No request is sent to the provider itself. Its name, region and basis must be those of the
    slots.
    """

    def __init__(self, provider: CarbonProvider, source: str) -> None:
        self.name, self.region = provider.name, provider.region
        self.basis: Basis = provider.basis
        self._source = source

    async def slots(self, session: aiohttp.ClientSession, _now_s: float) -> list[Slot]:
        """Return the slots. Raises SourceError, also for those of another provider or region."""
        document = await self._document(session)
        found = document.feeds.get(self.basis)
        if found is None:
            raise SourceError(
                f"{self._source} has no {self.basis} intensities yet", "the request is repeated"
            )
        if (found.provider, found.region) != (self.name, self.region):
            there, here = f"{found.provider} for {found.region}", f"{self.name} for {self.region}"
            remedy = "use the same --carbon.provider and --carbon.region"
            raise SourceError(f"{self._source} has intensities of {there}, not of {here}", remedy)
        return found.slots(self.basis)

    async def _document(self, session: aiohttp.ClientSession) -> CarbonDocument:
        if is_url(self._source):
            return await CarbonApi(self._source).get(session, PATH, CarbonDocument)
        try:
            body = await asyncio.to_thread(_read, Path(self._source))
        except OSError as error:
            remedy = f"give --carbon.shared the {FILE_NAME} of an exporter that runs"
            raise SourceError(f"cannot read {self._source}: {error.strerror}", remedy) from error
        return parse_body(self._source, body, CarbonDocument)


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_BYTES)
