"""What all that reads one card needs to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from exporter.model import Gpu, boottime


@dataclass(frozen=True, slots=True)
class Card:
    """`api` is pynvml or stands for it; `now` is CLOCK_BOOTTIME; tests give their own."""

    api: Any
    handle: Any
    info: Gpu
    usage_is_average: bool = False
    now: Callable[[], float] = boottime

    @property
    def labels(self) -> tuple[str, str]:
        return self.info.index, self.info.uuid


def text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
