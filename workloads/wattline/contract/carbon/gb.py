"""Responses of Great Britain's Carbon Intensity API.

https://carbon-intensity.github.io/api-definitions (CC BY 4.0, no key). Half-hour slots in UTC. An
estimate of the national actual follows half an hour after the slot's end and is revised for a day;
the regions have forecasts only. Some of the regional endpoints wrap the region in a list.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, BeforeValidator, Field, model_validator

from wattline.contract.carbon.responses import (
    DAY_S,
    MAX_POINTS,
    GramsPerKwh,
    IntensitySlot,
    format_minute,
)

BASE_URL = "https://api.carbonintensity.org.uk"
NATIONAL = "GB"
SLOT_S = 1_800


class _Intensity(BaseModel):
    forecast: GramsPerKwh | None
    actual: GramsPerKwh | None = None


class _Period(BaseModel):
    start: AwareDatetime = Field(alias="from")
    end: AwareDatetime = Field(alias="to")
    intensity: _Intensity

    @model_validator(mode="after")
    def _has_valid_length(self) -> Self:
        if not self.start < self.end:
            raise ValueError("the slot ends before it starts")
        if (self.end - self.start).total_seconds() > DAY_S:
            raise ValueError("the slot is longer than a day")
        return self

    def slot(self) -> IntensitySlot | None:
        start_s, end_s = self.start.timestamp(), self.end.timestamp()
        if self.intensity.actual is not None:
            return IntensitySlot(start_s, end_s, self.intensity.actual, "actual")
        if self.intensity.forecast is not None:
            return IntensitySlot(start_s, end_s, self.intensity.forecast, "forecast")
        return None


class NationalResponse(BaseModel):
    data: Annotated[list[_Period], Field(max_length=MAX_POINTS)]

    def slots(self) -> list[IntensitySlot]:
        return [slot for period in self.data if (slot := period.slot()) is not None]


class RegionalResponse(BaseModel):
    data: Annotated[
        list[NationalResponse],
        Field(max_length=20),
        BeforeValidator(lambda data: data if isinstance(data, list) else [data]),
    ]

    def slots(self) -> list[IntensitySlot]:
        return [slot for region in self.data for slot in region.slots()]


def national_path(start_s: float, end_s: float) -> str:
    return f"/intensity/{format_minute(start_s)}/{format_minute(end_s)}"
