"""Responses of Energy-Charts (Fraunhofer ISE).

https://api.energy-charts.info (CC BY 4.0, no key). Quarter hours (hours for some countries) as
parallel lists: actual values, about an hour late, and forecasts; both contain nulls.
"""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from wattline.contract.carbon.responses import MAX_POINTS, GramsPerKwh, IntensitySlot

BASE_URL = "https://api.energy-charts.info"
SLOT_S = 900
_MAX_SLOT_S = 3_600

_Values = Annotated[list[GramsPerKwh | None], Field(max_length=MAX_POINTS)]
_UnixSeconds = Annotated[int, Field(strict=True, ge=0, lt=1 << 33)]


class SeriesResponse(BaseModel):
    unix_seconds: Annotated[list[_UnixSeconds], Field(max_length=MAX_POINTS)]
    co2eq: _Values
    co2eq_forecast: _Values | None = None
    deprecated: bool = False

    @model_validator(mode="after")
    def _is_parallel_and_ordered(self) -> Self:
        if {len(self.co2eq), len(self.co2eq_forecast or self.co2eq)} != {len(self.unix_seconds)}:
            raise ValueError("the lists differ in length")
        if any(
            later <= earlier
            for earlier, later in zip(self.unix_seconds, self.unix_seconds[1:], strict=False)
        ):
            raise ValueError("the times do not increase")
        return self

    def slots(self) -> list[IntensitySlot]:
        """Return the actual values, and forecasts where none is known; a slot lasts until the next,
        an hour at most.
        """
        times = self.unix_seconds
        forecasts = self.co2eq_forecast or [None] * len(times)
        slots: list[IntensitySlot] = []
        length_s = SLOT_S
        for n, (start_s, actual, forecast) in enumerate(
            zip(times, self.co2eq, forecasts, strict=True)
        ):
            step_s = times[n + 1] - start_s if n + 1 < len(times) else length_s
            length_s = step_s if step_s <= _MAX_SLOT_S else SLOT_S
            if actual is not None:
                slots.append(IntensitySlot(start_s, start_s + length_s, actual, "actual"))
            elif forecast is not None:
                slots.append(IntensitySlot(start_s, start_s + length_s, forecast, "forecast"))
        return slots
