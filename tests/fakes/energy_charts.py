"""Energy-Charts on loopback: quarter hours, 400 g measured until an hour ago, then 450 g
forecast.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from tests.fakes.web_api import WebApi


@dataclass
class EnergyChartsApi(WebApi):
    forecasts: bool = True
    step_s: int = 900
    deprecated: bool = False
    measured: float = 400.0

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/co2eq", self.co2eq)]

    async def co2eq(self, request: web.Request) -> web.StreamResponse:
        now_s = self.now.timestamp()
        midnight_s = int(now_s // 86_400 * 86_400)
        times = list(range(midnight_s, midnight_s + 86_400, self.step_s))
        known = [begin_s + self.step_s <= now_s - 3_600 for begin_s in times]
        document = {
            "unix_seconds": times,
            "co2eq": [self.measured if past else None for past in known],
            "co2eq_forecast": [None if past or not self.forecasts else 450.0 for past in known],
            "deprecated": self.deprecated,
        }
        return await self.answer(request, document)
