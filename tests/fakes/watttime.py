"""WattTime v3 on loopback: 1,000 lbs/MWh forecast and 900 historical; login with expiring
tokens.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

from tests.fakes.web_api import WebApi

USER, PASSWORD = "ada", "s3cret:with colon"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
FIVE = timedelta(minutes=5)


@dataclass
class WattTimeApi(WebApi):
    """API with slots of 5 minutes. `regions` and `history` are included in the account's plan;
    `tokens` are valid.
    """

    regions: tuple[str, ...] = ("CAISO_NORTH",)
    history: bool = True
    units: str = "lbs_co2_per_mwh"
    answers_for: str = ""
    logins: int = 0
    tokens: set[str] = field(default_factory=set)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/login", self.login),
            web.get("/v3/forecast", self.forecast),
            web.get("/v3/historical", self.historical),
            web.get("/v3/region-from-loc", self.region_from_loc),
            web.get("/v3/my-access", self.my_access),
        ]

    async def login(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != BASIC:
            return await self.answer(request, {"error": "unauthorized"}, status=403)
        self.logins += 1
        token = f"s3cret-jwt-{self.logins}"
        self.tokens.add(token)
        return await self.answer(request, {"token": token})

    def _points(self, begin: datetime, count: int, value: float) -> list[dict[str, Any]]:
        return [
            {"point_time": (begin + n * FIVE).isoformat(), "value": value} for n in range(count)
        ]

    async def forecast(self, request: web.Request) -> web.StreamResponse:
        count = int(request.query["horizon_hours"]) * 12
        begin = datetime.fromtimestamp(self.now.timestamp() // 300 * 300, UTC)
        return await self._signal(request, self._points(begin, count, 1_000))

    async def historical(self, request: web.Request) -> web.StreamResponse:
        if not self.history:
            return await self.answer(request, {"error": "not in your plan"}, status=403)
        begin = datetime.fromisoformat(request.query["start"])
        end = min(datetime.fromisoformat(request.query["end"]), self.now - FIVE)
        return await self._signal(request, self._points(begin, int((end - begin) / FIVE), 900))

    async def _signal(
        self, request: web.Request, points: list[dict[str, Any]]
    ) -> web.StreamResponse:
        if not self._knows(request):
            return await self.answer(request, {"error": "token"}, status=401)
        if request.query["region"] not in self.regions:
            return await self.answer(request, {"error": "region"}, status=403)
        meta = {
            "data_point_period_seconds": 300,
            "region": self.answers_for or request.query["region"],
            "warnings": [],
            "signal_type": request.query["signal_type"],
            "model": {"date": "2023-03-01"},
            "units": self.units,
        }
        return await self.answer(request, {"data": points, "meta": meta})

    async def region_from_loc(self, request: web.Request) -> web.StreamResponse:
        if not self._knows(request):
            return await self.answer(request, {"error": "token"}, status=401)
        document = {
            "region": "CAISO_NORTH",
            "region_full_name": "California ISO Northern",
            "signal_type": request.query["signal_type"],
        }
        return await self.answer(request, document)

    async def my_access(self, request: web.Request) -> web.StreamResponse:
        if not self._knows(request):
            return await self.answer(request, {"error": "token"}, status=401)
        region = {
            "region": "CAISO_NORTH",
            "region_full_name": "California ISO Northern",
            "parent": "CAISO",
        }
        health = {"region": "PJM_NJ", "region_full_name": "PJM New Jersey", "parent": "PJM"}
        marginal = {"signal_type": "co2_moer", "regions": [region]}
        damage = {"signal_type": "health_damage", "regions": [health]}
        return await self.answer(request, {"signal_types": [damage, marginal]})

    def _knows(self, request: web.Request) -> bool:
        return request.headers.get("Authorization", "").removeprefix("Bearer ") in self.tokens
