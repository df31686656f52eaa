"""Tables and values of panels by Grafana's own data library (npm package @grafana/data), run with
Node.js.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grafana.charts import ResultSeries
from tests import servers

_HERE = Path(__file__).parent
_INSTALLED = Path(__file__).parents[3] / "build" / "grafana-data"


def install() -> Path:
    """Install the locked packages below `build/`, once for each version of the lock file; return
    `node_modules`.
    """
    servers.require("node", "nodejs")
    npm = servers.require("npm", "npm")
    lock = (_HERE / "package-lock.json").read_text()
    modules, installed = _INSTALLED / "node_modules", _INSTALLED / "installed.json"
    if not installed.exists() or installed.read_text() != lock:
        _INSTALLED.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            (_INSTALLED / name).write_text((_HERE / name).read_text())
        call = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(
            call, check=False, cwd=_INSTALLED, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr
        installed.write_text(lock)
    return modules


def show(
    modules: Path, panels: Sequence[tuple[dict[str, Any], Sequence[ResultSeries]]]
) -> list[dict[str, Any]]:
    """Return what each panel shows of its answers: its figures, lines or table, with values and
    texts.
    """
    asked = [
        {
            "panel": model,
            "results": [
                {
                    "refId": one.ref,
                    "legend": one.legend,
                    "labels": one.labels,
                    "t": one.t,
                    "value": one.value,
                }
                for one in results
            ],
        }
        for model, results in panels
    ]
    done = subprocess.run(
        ["node", str(_HERE / "show.cjs")],
        check=False,
        input=json.dumps(asked),
        env=os.environ | {"NODE_PATH": str(modules)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    shown: list[dict[str, Any]] = json.loads(done.stdout)
    return shown
