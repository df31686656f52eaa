"""Request for the report of a time range without a run, and the names it can use.

The command line imports this module at its start, so it has no tables of metrics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

AUTO = "auto"
SCHEMA_NAMES = (
    "wattline",
    "dcgm-exporter",
    "nvidia-gpu-exporter",
    "kepler",
    "node-exporter",
    "all-smi",
)
TOKEN_SERVER_NAMES = ("vllm", "sglang", "tgi", "llama.cpp", "tensorrt-llm")


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Time range in Unix seconds, with filters.

    `node` is a regular expression, `gpus` are indices or UUIDs. `matching` are labels that all
    series of the exporters must have, `tokens_matching` those of the LLM servers. `rapl_ranges_j`
    is by zone. With `until_now` the range ends with the last scrape.
    """

    start_s: float
    end_s: float
    node: str | None = None
    gpus: tuple[str, ...] = ()
    schema: str = AUTO
    matching: Mapping[str, str] = field(default_factory=dict)
    tokens: str | None = None
    tokens_matching: Mapping[str, str] = field(default_factory=dict)
    rapl_ranges_j: Mapping[str, float] = field(default_factory=dict)
    until_now: bool = False

    @property
    def run_id(self) -> str:
        """Name of the range, by start and end rounded down to seconds."""
        start_s = math.floor(self.start_s)
        end_s = math.floor(self.end_s)
        return f"range-{datetime.fromtimestamp(start_s, UTC):%Y%m%dT%H%M%SZ}-{end_s - start_s}s"

    @property
    def window(self) -> str:
        """Text for messages, in local time."""
        begin, end = (datetime.fromtimestamp(t).astimezone() for t in (self.start_s, self.end_s))
        return f"between {begin:%Y-%m-%d %H:%M:%S %z} and {end:%Y-%m-%d %H:%M:%S %z}"
