"""GB Carbon Intensity API on loopback, with selectable faults."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from tests.fakes import web_api
from tests.fakes.web_api import WebApi

HALF_HOUR = timedelta(minutes=30)
FORMAT = "%Y-%m-%dT%H:%MZ"
BODIES = web_api.BODIES | {
    "no slots": '{"data": []}',
    "no intensity": '{"data": [{"from": "2018-01-20T12:00Z", "to": "2018-01-20T12:30Z"}]}',
    "backwards": """{"data": [{"from": "2018-01-20T12:30Z", "to": "2018-01-20T12:00Z",
                     "intensity": {"forecast": 266, "actual": 263, "index": "moderate"}}]}""",
    "a year long": """{"data": [{"from": "2018-01-20T12:30Z", "to": "2019-01-20T12:00Z",
                       "intensity": {"forecast": 266, "actual": 263, "index": "moderate"}}]}""",
}


@dataclass
class CarbonApi(WebApi):
    """API with forecasts of 200, and actuals of 190 for slots that ended before `now` less half an
    hour.

    `actuals` overrides values by `from`.
    """

    bodies: dict[str, str] = field(default_factory=lambda: dict(BODIES))
    forecast: float = 200
    actuals: dict[str, float] = field(default_factory=dict)
    regions_in_a_list: bool = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/intensity/{start}/{end}", self.national),
            web.get("/regional/intensity/{start}/{end}/regionid/{id}", self.regional),
            web.get("/regional/intensity/{start}/{end}/postcode/{postcode}", self.regional),
        ]

    def periods(self, request: web.Request, *, national: bool) -> list[dict[str, Any]]:
        """Return slots of half an hour, starting, like the real API, with the slot that ends at
        `start`.
        """
        start, end = (
            datetime.strptime(request.match_info[name], FORMAT).replace(tzinfo=UTC)
            for name in ("start", "end")
        )
        count = (end - start) // HALF_HOUR + 1
        return [self.period(start + (n - 1) * HALF_HOUR, national=national) for n in range(count)]

    def period(self, begin: datetime, *, national: bool) -> dict[str, Any]:
        key = begin.strftime(FORMAT)
        period: dict[str, Any] = {"from": key, "to": (begin + HALF_HOUR).strftime(FORMAT)}
        if not national:
            mix = [{"fuel": "gas", "perc": 43.6}, {"fuel": "wind", "perc": 56.4}]
            return {
                **period,
                "intensity": {"forecast": self.forecast, "index": "moderate"},
                "generationmix": mix,
            }
        known = begin + 2 * HALF_HOUR <= self.now
        actual = self.actuals.get(key, 190 if known else None)
        return {
            **period,
            "intensity": {"forecast": self.forecast, "actual": actual, "index": "moderate"},
        }

    async def national(self, request: web.Request) -> web.StreamResponse:
        return await self.answer(request, {"data": self.periods(request, national=True)})

    async def regional(self, request: web.Request) -> web.StreamResponse:
        region: dict[str, Any] = {
            "regionid": int(request.match_info.get("id", "13")),
            "dnoregion": "UKPN London",
            "shortname": "London",
            "data": self.periods(request, national=False),
        }
        if "postcode" in request.match_info:
            region["postcode"] = request.match_info["postcode"]
        return await self.answer(request, {"data": [region] if self.regions_in_a_list else region})
