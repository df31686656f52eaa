"""Responses of Electricity Maps, API v3.

https://portal.electricitymaps.com/developer-hub/api. Life-cycle intensity of consumption, in hours
unless the token's plan has shorter slots. Values are estimated at first (`isEstimated`) and
replaced by measured ones hours later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, Field, RootModel, model_validator

from wattline.contract.carbon.responses import MAX_POINTS, GramsPerKwh, IntensitySlot, Quality

BASE_URL = "https://api.electricitymaps.com"
_SLOTS_S = {"5_minutes": 300.0, "15_minutes": 900.0, "hourly": 3_600.0}


class _Point(BaseModel):
    """Intensity from `datetime` on, in gCO2eq/kWh; forecasts have no `isEstimated`."""

    carbonIntensity: GramsPerKwh | None  # noqa: N815  # the provider's name
    datetime: AwareDatetime
    isEstimated: bool | None = None  # noqa: N815  # the provider's name

    def slot(self, length_s: float, quality: Quality | None = None) -> IntensitySlot | None:
        """Return the slot; without `quality` it is estimated unless the provider states that it is
        measured.
        """
        if self.carbonIntensity is None:
            return None
        start_s = self.datetime.timestamp() // length_s * length_s
        measured_or_not: Quality = "actual" if self.isEstimated is False else "estimated"
        return IntensitySlot(
            start_s, start_s + length_s, self.carbonIntensity, quality or measured_or_not
        )


class _Slotted(BaseModel):
    temporalGranularity: str = "hourly"  # noqa: N815  # the provider's name

    @property
    def slot_s(self) -> float:
        return _SLOTS_S[self.temporalGranularity]

    @model_validator(mode="after")
    def _has_known_granularity(self) -> Self:
        if self.temporalGranularity not in _SLOTS_S:
            raise ValueError(f"temporalGranularity is not {' or '.join(_SLOTS_S)}")
        return self


class LatestResponse(_Slotted, _Point):
    zone: str

    def slots(self) -> list[IntensitySlot]:
        return slots_of([self], self.slot_s)


class HistoryResponse(_Slotted):
    zone: str
    history: Annotated[list[_Point], Field(max_length=MAX_POINTS)]

    def slots(self) -> list[IntensitySlot]:
        return slots_of(self.history, self.slot_s)


class ForecastResponse(_Slotted):
    zone: str
    forecast: Annotated[list[_Point], Field(max_length=MAX_POINTS)]

    def slots(self) -> list[IntensitySlot]:
        return slots_of(self.forecast, self.slot_s, "forecast")


class _ZonePoint(_Point):
    zone: str | None = None


class PastRangeResponse(_Slotted):
    zone: str | None = None
    data: Annotated[list[_ZonePoint], Field(max_length=MAX_POINTS)]

    def is_for(self, zone: str) -> bool:
        """Return False if a point belongs to another zone, or does not name one."""
        return all((point.zone or self.zone) == zone for point in self.data)

    def slots(self) -> list[IntensitySlot]:
        return slots_of(self.data, self.slot_s)


class _Zone(BaseModel):
    zoneName: str | None = None  # noqa: N815  # the provider's name
    countryName: str | None = None  # noqa: N815  # the provider's name


class ZonesResponse(RootModel[dict[str, _Zone]]):
    """Zones by their keys."""

    def names(self) -> dict[str, str]:
        """Return `COUNTRY, ZONE` by key, as far as the provider names them."""
        pairs = {key: (zone.countryName, zone.zoneName) for key, zone in self.root.items()}
        return {
            key: ", ".join(name for name in pair if name) for key, pair in sorted(pairs.items())
        }


def slots_of(
    points: Sequence[_Point], slot_s: float, quality: Quality | None = None
) -> list[IntensitySlot]:
    return [slot for point in points if (slot := point.slot(slot_s, quality)) is not None]
