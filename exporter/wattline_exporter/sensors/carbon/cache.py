"""Cache of carbon intensities (`carbon.json` in the state folder) for a restart without requests.

{"version": 1, "feeds": {"average": {"provider": "gb", "region": "GB", "fetched_s": 1516449600.0,
 "due_s": 1516451420.0, "slots": [{"region": "GB", "begin_s": 1516449600.0, "end_s": 1516451400.0,
 "grams_per_kwh": 200.0, "quality": "forecast"}, ...]}}}
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from wattline_exporter.sensors.carbon.provider import DAY_S, Basis, GramsPerKwh
from wattline_exporter.sensors.readings import Slot

FILE_NAME = "carbon.json"
MAX_BYTES = 4 << 20
_Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_Label = Annotated[str, Field(min_length=1, max_length=100)]

log = logging.getLogger(__name__)


class _Slot(BaseModel):
    region: _Label
    begin_s: _Moment
    end_s: _Moment
    grams_per_kwh: GramsPerKwh
    quality: Literal["actual", "forecast", "estimated"]

    @model_validator(mode="after")
    def _has_valid_length(self) -> Self:
        if not 0 < self.end_s - self.begin_s <= DAY_S:
            raise ValueError("the slot is longer than a day, or ends before it starts")
        return self


class CachedSlots(BaseModel):
    """Slots of a feed, valid for the configured `provider` and `region` only."""

    model_config = ConfigDict(frozen=True)

    provider: str
    region: str
    fetched_s: _Moment
    due_s: _Moment
    rows: list[_Slot] = Field(alias="slots")

    @classmethod
    def of(
        cls, provider: str, region: str, fetched_s: float, due_s: float, slots: tuple[Slot, ...]
    ) -> Self:
        rows = [
            {
                "region": slot.region,
                "begin_s": slot.begin_s,
                "end_s": slot.end_s,
                "grams_per_kwh": slot.grams_per_kwh,
                "quality": slot.quality,
            }
            for slot in slots
        ]
        return cls.model_validate(
            {
                "provider": provider,
                "region": region,
                "fetched_s": fetched_s,
                "due_s": due_s,
                "slots": rows,
            }
        )

    def slots(self, basis: Basis) -> list[Slot]:
        return [
            Slot(
                row.begin_s,
                row.end_s,
                row.grams_per_kwh,
                row.region,
                self.provider,
                basis,
                row.quality,
            )
            for row in self.rows
        ]


class CarbonDocument(BaseModel):
    """Slots of all feeds, as the file stores them and as `GET /api/v1/carbon` returns them."""

    version: Literal[1] = 1
    feeds: dict[Basis, CachedSlots]


class CarbonCache:
    """Cached slots of all feeds. Blocking; `save` may be called in threads. Disk errors are logged,
    not raised.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._is_failing = False
        self._feeds = self._read()

    def get(self, basis: Basis) -> CachedSlots | None:
        return self._feeds.get(basis)

    def save(self, basis: Basis, slots: CachedSlots) -> None:
        with self._lock:
            self._feeds[basis] = slots
            try:
                self._write(
                    CarbonDocument(feeds=self._feeds).model_dump_json(by_alias=True).encode()
                )
            except OSError as error:
                if not self._is_failing:
                    log.warning(
                        "cannot write %s: %s; after a restart the intensities are requested again",
                        self.path,
                        error,
                    )
                self._is_failing = True
            else:
                self._is_failing = False

    def _write(self, text: bytes) -> None:
        """Replace the file atomically, durable after a power cut."""
        new = self.path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)

    def _read(self) -> dict[Basis, CachedSlots]:
        try:
            with self.path.open("rb") as file:
                text = file.read(MAX_BYTES)
            return CarbonDocument.model_validate_json(text).feeds
        except FileNotFoundError:
            return {}
        except ValidationError:
            log.warning(
                "cannot parse %s: not written by this exporter; it is ignored and replaced",
                self.path,
            )
        except OSError as error:
            log.warning("cannot read %s: %s; the intensities are requested again", self.path, error)
        return {}
