"""Findings: what a reader should know before relying on a figure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["note", "warning", "bad"]
_LEVELS = ("bad", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """`code` is stable, for scripts; `subject` is a device or node (`GPU 0`), empty for the whole run."""

    level: Level
    code: str
    subject: str
    text: str


def ordered_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by severity; equal texts are merged into one finding with all their subjects."""
    subjects: dict[Finding, list[str]] = {}
    for finding in sorted(findings, key=lambda finding: _LEVELS.index(finding.level)):
        subjects.setdefault(replace(finding, subject=""), []).append(finding.subject)
    return tuple(replace(finding, subject=", ".join(filter(None, names))) for finding, names in subjects.items())
