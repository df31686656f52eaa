"""A service-level objective, and which answers meet it."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

from workloads.jobs.llm_load.answer import Answer

_FORM = "give seconds by name, like ttft=0.5,tpot=0.05,e2e=10"


@dataclass(frozen=True, slots=True)
class Slo:
    """The most that each may take, in seconds; None is no matter."""

    ttft_s: float = math.inf
    tpot_s: float = math.inf
    e2e_s: float = math.inf
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def is_met_by(self, answer: Answer) -> bool:
        """What could not be measured is not met; a single token has no time per output token to fail."""
        if answer.failure or answer.e2e_s > self.e2e_s:
            return False
        if self.ttft_s < math.inf and (answer.ttft_s is None or answer.ttft_s > self.ttft_s):
            return False
        return (
            self.tpot_s == math.inf
            or answer.tokens == 1
            or (answer.tpot_s is not None and answer.tpot_s <= self.tpot_s)
        )


def of(text: str) -> Slo:
    """Raises argparse.ArgumentTypeError."""
    limits_s: dict[str, float] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name not in {"ttft", "tpot", "e2e"} or name in limits_s:
            raise argparse.ArgumentTypeError(f"{part!r} is not understood; {_FORM}")
        try:
            limits_s[name] = float(value)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{part!r} has no number; {_FORM}") from None
        if not 0 < limits_s[name] < math.inf:
            raise argparse.ArgumentTypeError(f"{part!r} can never be judged; {_FORM}")
    return Slo(**{f"{name}_s": limit_s for name, limit_s in limits_s.items()}, text=text)
