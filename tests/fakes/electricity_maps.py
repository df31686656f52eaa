"""Electricity Maps v3 on loopback: 300 g measured until three hours ago, 320 estimated since, 350
forecast.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aiohttp import web

from tests.fakes.web_api import WebApi

TOKEN = "s3cret-em-token"
HOUR = timedelta(hours=1)
ZONES = {
    "DE": {"zoneName": "Germany"},
    "US-CAL-CISO": {"countryName": "USA", "zoneName": "CAISO"},
    "no zone\n": {"zoneName": "garbage"},
}


@dataclass
class ElectricityMapsApi(WebApi):
    """API with hourly slots. `free` is a token without forecasts; `late` is the delay of the latest
    slot in hours.
    """

    free: bool = False
    late: int = 0
    extra_fault: str = ""
    """Status of responses for history and forecast."""
    granularity: str = "hourly"
    answers_for: str = ""

    def routes(self) -> list[web.RouteDef]:
        base = "/v3/carbon-intensity"
        return [
            web.get(f"{base}/latest", self.latest),
            web.get(f"{base}/history", self.history),
            web.get(f"{base}/forecast", self.forecast),
            web.get("/v3/zones", self.zones),
        ]

    def point(self, moment: datetime) -> dict[str, Any]:
        measured = moment <= self.now - 3 * HOUR
        return {
            "zone": "DE",
            "carbonIntensity": 300 if measured else 320,
            "datetime": moment.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "updatedAt": self.now.strftime("%Y-%m-%dT%H:%M:%S.000Z"),
            "emissionFactorType": "lifecycle",
            "isEstimated": not measured,
            "estimationMethod": None if measured else "TIME_SLICER_AVERAGE",
        }

    @property
    def hour(self) -> datetime:
        return self.now.replace(minute=0, second=0) - self.late * HOUR

    async def latest(self, request: web.Request) -> web.StreamResponse:
        return await self._of_zone(request, self.point(self.hour))

    async def history(self, request: web.Request) -> web.StreamResponse:
        if self.extra_fault:
            return await self.answer(request, {"error": "no"}, status=int(self.extra_fault))
        points = [self.point(self.hour - n * HOUR) for n in range(23, -1, -1)]
        return await self._of_zone(request, {"history": points})

    async def forecast(self, request: web.Request) -> web.StreamResponse:
        if self.free or self.extra_fault:
            return await self.answer(
                request, {"error": "not in your plan"}, status=int(self.extra_fault or 401)
            )
        moments = [(self.hour + n * HOUR).strftime("%Y-%m-%dT%H:%M:%S.000Z") for n in range(49)]
        return await self._of_zone(
            request,
            {"forecast": [{"carbonIntensity": 350, "datetime": moment} for moment in moments]},
        )

    async def _of_zone(self, request: web.Request, document: dict[str, Any]) -> web.StreamResponse:
        if request.headers.get("auth-token") != TOKEN:
            return await self.answer(
                request, {"status": "error", "message": "Invalid auth-token"}, status=401
            )
        zone = self.answers_for or request.query["zone"]
        return await self.answer(
            request, {**document, "zone": zone, "temporalGranularity": self.granularity}
        )

    async def zones(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, ZONES)
