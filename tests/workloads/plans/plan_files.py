"""Plan files, their runs in real processes, and their journals."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.workloads.programs import Exporter

TWO_REPEATS = (
    "name: naps\nrepeats: 2\nlabels: {site: lab}\nruns:\n  - job: sleep\n    options: "
    "{duration: 0.1}\n"
)


def write_file(folder: Path, text: str, name: str = "plan.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def run_plan(
    exporter: Exporter, plan: Path, *options: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a plan to its end; the default results folder is `results` next to it."""
    out = () if {"--resume", "--out"} & set(options) else ("--out", str(plan.parent / "results"))
    return exporter.workloads("plan", str(plan), *out, *options, **environment)


def read_journal(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
