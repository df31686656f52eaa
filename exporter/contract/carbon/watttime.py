"""Responses of WattTime, API v3.

https://docs.watttime.org. The signal `co2_moer` is the marginal intensity in pounds of CO2 per MWh, in slots of
5 minutes. The free signal index is a rank of 0 to 100 and not an intensity; it is not used.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from exporter.contract.carbon.response import MAX_GRAMS_PER_KWH, MAX_POINTS, IntensitySlot, Quality

BASE_URL = "https://api.watttime.org"
SIGNAL = "co2_moer"
REGION_PATTERN = r"[A-Z0-9][A-Z0-9_.-]{0,63}"
GRAMS_PER_POUND = 453.59237
_GRAMS_PER_KWH = GRAMS_PER_POUND / 1_000
"""One pound per MWh in g/kWh."""


class LoginResponse(BaseModel):
    token: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,8192}$")]


class LocationResponse(BaseModel):
    region: Annotated[str, StringConstraints(pattern=f"^{REGION_PATTERN}$")]


class _Point(BaseModel):
    point_time: AwareDatetime
    value: Annotated[float, Field(strict=True, ge=0, le=MAX_GRAMS_PER_KWH / _GRAMS_PER_KWH)]


class _Meta(BaseModel):
    region: str
    units: Literal["lbs_co2_per_mwh"]
    data_point_period_seconds: Annotated[float, Field(ge=60, le=3_600)] = 300.0


class SignalResponse(BaseModel):
    data: Annotated[list[_Point], Field(max_length=MAX_POINTS)]
    meta: _Meta

    @property
    def region(self) -> str:
        return self.meta.region

    @property
    def slot_s(self) -> float:
        return self.meta.data_point_period_seconds

    def slots(self, quality: Quality) -> list[IntensitySlot]:
        return [
            IntensitySlot(start_s, start_s + self.slot_s, point.value * _GRAMS_PER_KWH, quality)
            for point in self.data
            for start_s in (point.point_time.timestamp(),)
        ]


class _Region(BaseModel):
    region: str
    region_full_name: str = ""


class _SignalType(BaseModel):
    signal_type: str
    regions: list[_Region]


class AccessResponse(BaseModel):
    signal_types: list[_SignalType]

    def region_names(self) -> dict[str, str]:
        """Return the full name of each region whose marginal intensity the account may read."""
        found = [region for kind in self.signal_types if kind.signal_type == SIGNAL for region in kind.regions]
        names = {region.region: region.region_full_name for region in found}
        return dict(sorted(names.items()))
