"""The golden commands and their documents: JSON of the fixed history, without the texts.

`python -m tests.analyzer.golden.documents` rewrites them after an intended change of a figure.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from tests.analyzer.golden.scene import BASE_S
from wattline_analyzer.cli import main

FOLDER = Path(__file__).parent
HISTORY = FOLDER / "history.sqlite.gz"
CALIBRATION = FOLDER / "calibration.csv"
INTENSITIES = FOLDER / "intensities.csv"
REQUESTS = FOLDER / "requests.csv"
_LABELS = 'instance="a:9847"'
_USER_INPUTS = ("--carbon", "250", "--pue", "1.25", "--price", "0.3", "--currency", "EUR")
_HARDWARE = ("--embodied-kg", "1500", "--lifetime-years", "4")
_WINDOW = ("--since", str(BASE_S - 30), "--until", str(BASE_S + 3_000))
COMMANDS = {
    "report-mixed": ("report", "--run-id", "mixed"),
    "report-mixed-user-inputs": (
        *("report", "--run-id", "mixed", *_USER_INPUTS, *_HARDWARE),
        *("--restate", str(INTENSITIES), "--calibration", str(CALIBRATION)),
    ),
    "report-unfinished": ("report", "--run-id", "unfinished"),
    "report-imported": ("report", "--run-id", "imported", "--pue", "1.1"),
    "report-range": (
        *("report", "--start", str(BASE_S + 5), "--end", str(BASE_S + 95), "--matching", _LABELS),
        *(*_USER_INPUTS, *_HARDWARE),
    ),
    "requests": (
        *("requests", "--start", str(BASE_S - 30), "--end", str(BASE_S + 38), "--gpus", "0"),
        *("--requests", str(REQUESTS), "--by", "user", "--price", "0.3", "--carbon", "250"),
    ),
    "runs": ("runs",),
    "usage": ("usage", *_WINDOW, "--by", "model,user", "--price", "0.3", "--currency", "EUR"),
    "usage-by-node": ("usage", *_WINDOW, "--by", "workload,node"),
    "compare": ("compare", "power_limit_watts=400", "power_limit_watts=500"),
    "recommend": ("recommend", "--experiment", "caps"),
    "tenants": ("tenants", "--experiment", "pair"),
    "variability": ("variability", "--experiment", "each-gpu", "--of", "energy"),
}
_TEXTS = (
    *("text", "source", "notes", "reason", "reasons", "energy_reason", "answer", "title"),
    *("advice", "remarks"),
)


def unpack(folder: Path) -> Path:
    path = folder / "history.sqlite"
    path.write_bytes(gzip.decompress(HISTORY.read_bytes()))
    return path


def output(name: str, history: Path) -> str:
    """Return the JSON of a command that searches the whole past."""
    days = math.ceil((time.time() - BASE_S) / 86_400) + 1
    since = () if "--since" in COMMANDS[name] else ("--since", f"{days}d")
    arguments = [*COMMANDS[name], "--source", str(history), *since, "--format", "json"]
    before, sys.argv = sys.argv, ["analyzer", *arguments]
    stdout = io.StringIO()
    try:
        with contextlib.redirect_stdout(stdout):
            main()
    except SystemExit as exit_info:
        if exit_info.code:
            raise
    finally:
        sys.argv = before
    return stdout.getvalue()


def without_texts(data: Any) -> Any:
    """Return the document without sentences and paths, which may change; figures may not."""
    if isinstance(data, dict):
        return {key: without_texts(value) for key, value in data.items() if key not in _TEXTS}
    return [without_texts(value) for value in data] if isinstance(data, list) else data


def rounded(data: Any) -> Any:
    """Return the document with floats of 13 digits: the order of the sums in numpy's kernels
    depends on the CPU.
    """
    if isinstance(data, dict):
        return {key: rounded(value) for key, value in data.items()}
    if isinstance(data, list):
        return [rounded(value) for value in data]
    return float(f"{data:.13g}") if isinstance(data, float) else data


def golden(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def leaves(data: Any, path: str = "") -> dict[str, Any]:
    """Return each value by its path; an empty list or object is its JSON text."""
    children = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    document = {
        key: leaf
        for name, child in children
        for key, leaf in leaves(child, f"{path}/{name}").items()
    }
    return document or {path: json.dumps(data) if data in ([], {}) else data}


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        fixed = unpack(Path(folder))
        for each in COMMANDS:
            document = rounded(without_texts(json.loads(output(each, fixed))))
            (FOLDER / f"{each}.json").write_text(
                json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            )
