"""Carbon provider Electricity Maps: zones of the whole world, with a token.

Free tokens have one zone, for non-commercial use, and no forecast. A request without a zone would
be answered for the location of the caller's address; so each request names the zone, and the
response's zone is checked.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
from pydantic import BaseModel

from wattline.contract.carbon.electricity_maps import (
    BASE_URL,
    ForecastResponse,
    HistoryResponse,
    LatestResponse,
    ZonesResponse,
)
from wattline.contract.carbon.responses import Basis
from wattline_exporter.sensors.carbon.provider import (
    TIMEOUT_S,
    CarbonApi,
    HttpStatusError,
    OptionalEndpoint,
    extend_with_estimates,
    label_slots,
)
from wattline_exporter.sensors.readings import Slot, SourceError

_ZONE = re.compile(r"[A-Z]{2}(-[A-Z0-9]{1,12}){0,3}")
_EXTEND_S = 3 * 3_600.0
_EXTEND_STEP_S = 900.0
_PARAMETERS = {"forecast": {"horizonHours": 48}}
_LIST_ZONES = "list the zones with: exporter regions --carbon.provider electricitymaps"

_Model = TypeVar("_Model", bound=BaseModel)


class ElectricityMaps:
    """Provider of life-cycle intensities; `region` is a zone's key in any case. Raises ValueError
    for other text.
    """

    name = "electricitymaps"
    basis: Basis = "average"

    def __init__(
        self, region: str, token: str, base_url: str | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.region = region.strip().upper()
        if not _ZONE.fullmatch(self.region):
            raise ValueError(
                f"{region!r} is not a zone of electricitymaps; use a key such as DE or US-CAL-CISO "
                f"({_LIST_ZONES})"
            )
        self._api = CarbonApi(base_url or BASE_URL, timeout_s, {"auth-token": token})
        self._history, self._forecast = OptionalEndpoint(), OptionalEndpoint()

    async def slots(self, session: aiohttp.ClientSession, now_s: float) -> list[Slot]:
        latest = await self._get_latest(session)
        if latest.zone != self.region:
            cause = (
                f"{self._api.base_url} answered for zone {latest.zone[:20]!r} instead of "
                f"{self.region}"
            )
            raise SourceError(cause, _LIST_ZONES)
        history = await self._history.get(
            partial(self._get, session, "history", HistoryResponse), now_s
        )
        forecast = await self._forecast.get(
            partial(self._get, session, "forecast", ForecastResponse), now_s
        )
        responses = [
            response
            for response in (forecast, history, latest)
            if response and response.zone == self.region
        ]
        by_start = {
            slot.start_s: slot for response in responses for slot in response.slots()
        }  # the last one counts
        if not by_start:
            raise SourceError(
                f"{self._api.base_url} has no intensity for {self.region}",
                "the request is repeated",
            )
        slots = label_slots(by_start.values(), self)
        return extend_with_estimates(slots, now_s, step_s=_EXTEND_STEP_S, within_s=_EXTEND_S)

    async def _get_latest(self, session: aiohttp.ClientSession) -> LatestResponse:
        try:
            return await self._get(session, "latest", LatestResponse)
        except HttpStatusError as error:
            if not error.is_denied:
                raise
            remedy = (
                f"check the token, and that its plan includes zone {self.region}; {_LIST_ZONES}"
            )
            raise HttpStatusError(error.cause, remedy, error.status) from error

    async def _get(
        self, session: aiohttp.ClientSession, endpoint: str, model: type[_Model]
    ) -> _Model:
        query = urlencode({"zone": self.region, **_PARAMETERS.get(endpoint, {})})
        return await self._api.get(session, f"/v3/carbon-intensity/{endpoint}?{query}", model)


async def list_zones(
    session: aiohttp.ClientSession, token: str | None, base_url: str | None = None
) -> dict[str, str]:
    """Return each zone's name by key: the zones of the token's plan, or all without a token."""
    api = CarbonApi(base_url or BASE_URL, secret={"auth-token": token} if token else {})
    names = (await api.get(session, "/v3/zones", ZonesResponse)).names()
    return {key: name for key, name in names.items() if _ZONE.fullmatch(key)}
