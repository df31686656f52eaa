"""What the user asks of a range that no run tagged."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from analyzer.sources.untagged.meters import Meter, host_of, uuid_of
from analyzer.sources.untagged.schema_names import AUTO


@dataclass(frozen=True, slots=True)
class Asked:
    """Times in Unix seconds. `node` is a regular expression, `gpus` are indices or UUIDs, `matching` labels that all
    series of the exporters must have, `tokens_matching` those of the servers. `rapl_ranges_j` by zone. `until_now`:
    the range ends with the last scrape, whenever that was.
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
        """By the whole seconds that have begun, of begin and end alike, as times are shown."""
        start_s, end_s = math.floor(self.start_s), math.floor(self.end_s)
        return f"range-{datetime.fromtimestamp(start_s, UTC):%Y%m%dT%H%M%SZ}-{end_s - start_s}s"

    @property
    def window(self) -> str:
        """For a person to read, in local time."""
        begin, end = (datetime.fromtimestamp(t).astimezone() for t in (self.start_s, self.end_s))
        return f"between {begin:%Y-%m-%d %H:%M:%S %z} and {end:%Y-%m-%d %H:%M:%S %z}"

    def takes_node(self, node: str, instance: str) -> bool:
        """The whole of the node's name, of its first part, or of the scraped address, with or without the port."""
        names = {node, node.partition(".")[0], instance, host_of(instance)}
        return self.node is None or any(re.fullmatch(self.node, name) for name in names)

    def takes(self, meter: Meter) -> bool:
        wanted = {uuid_of(text) for text in self.gpus}
        return meter.component != "gpu" or not wanted or bool(wanted & {meter.index, meter.device})
