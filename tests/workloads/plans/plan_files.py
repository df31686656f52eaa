"""Plans in files, run by real processes against an exporter."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.workloads.conftest import Exporter

TWICE = "name: naps\nrepeats: 2\nlabels: {site: lab}\nruns:\n  - job: sleep\n    options: {duration: 0.1}\n"


def write(folder: Path, text: str, name: str = "plan.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def make(exporter: Exporter, plan: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A plan from begin to end; its results are in `results` beside it unless told otherwise."""
    where = () if {"--resume", "--out"} & set(options) else ("--out", str(plan.parent / "results"))
    return exporter.workloads("plan", str(plan), *where, *options, **environment)


def journal(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
