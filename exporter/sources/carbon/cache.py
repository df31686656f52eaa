"""`carbon.json` in the state folder: the intensities held, so that a restart asks no provider again.

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

from exporter.model import Slot
from exporter.sources.carbon.provider import DAY_S, Basis, Grams

FILE_NAME = "carbon.json"
MOST_BYTES = 4 << 20
_Moment = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_Label = Annotated[str, Field(min_length=1, max_length=100)]

log = logging.getLogger(__name__)


class _Slot(BaseModel):
    region: _Label
    begin_s: _Moment
    end_s: _Moment
    grams_per_kwh: Grams
    quality: Literal["actual", "forecast", "estimated"]

    @model_validator(mode="after")
    def _forward(self) -> Self:
        if not 0 < self.end_s - self.begin_s <= DAY_S:
            raise ValueError("the slot is longer than a day, or ends before it begins")
        return self


class Held(BaseModel):
    """What a feed holds. `provider` and `region` are those asked for; of others it is of no use."""

    model_config = ConfigDict(frozen=True)

    provider: str
    region: str
    fetched_s: _Moment
    due_s: _Moment
    rows: list[_Slot] = Field(alias="slots")

    @classmethod
    def of(cls, provider: str, region: str, fetched_s: float, due_s: float, slots: tuple[Slot, ...]) -> Self:
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
            {"provider": provider, "region": region, "fetched_s": fetched_s, "due_s": due_s, "slots": rows}
        )

    def slots(self, basis: Basis) -> list[Slot]:
        return [
            Slot(row.begin_s, row.end_s, row.grams_per_kwh, row.region, self.provider, basis, row.quality)
            for row in self.rows
        ]


class _File(BaseModel):
    version: Literal[1] = 1
    feeds: dict[Basis, Held]


class CarbonCache:
    """Of all feeds. Blocking; `save` may be called in threads. It is never worth an error: one warning, and on."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._lock = threading.Lock()
        self._trouble = False
        self._feeds = self._read()

    def get(self, basis: Basis) -> Held | None:
        return self._feeds.get(basis)

    def save(self, basis: Basis, held: Held) -> None:
        with self._lock:
            self._feeds[basis] = held
            try:
                self._write(_File(feeds=self._feeds).model_dump_json(by_alias=True).encode())
            except OSError as error:
                if not self._trouble:
                    log.warning("cannot write %s: %s; a restart will ask for the intensities again", self.path, error)
                self._trouble = True
            else:
                self._trouble = False

    def _write(self, text: bytes) -> None:
        """All or nothing, also after a power cut."""
        beside = self.path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def _read(self) -> dict[Basis, Held]:
        try:
            with self.path.open("rb") as file:
                text = file.read(MOST_BYTES)
            return _File.model_validate_json(text).feeds
        except FileNotFoundError:
            return {}
        except ValidationError:
            log.warning("%s is not what this exporter writes; it is ignored and written anew", self.path)
        except OSError as error:
            log.warning("cannot read %s: %s; the intensities are asked for again", self.path, error)
        return {}
