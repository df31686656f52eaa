"""Pictures of the dashboards, drawn from their queries: python -m grafana.pictures
http://prometheus:9090

Panels have Grafana's positions and queries; matplotlib draws them.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from grafana.charts import TEXT, ResultSeries, Times, draw

HERE = Path(__file__).parent
_COLUMN_PX = 50
_ROW_PX = 34
_TITLE_PX = 46
_DPI = 100
_GAP_PX = 4


@dataclass(frozen=True)
class BoardView:
    """Time range of a dashboard, `seconds` up to `end_s`, and the values of its variables."""

    server: str
    end_s: float
    seconds: int
    chosen: Mapping[str, str]

    def filled(self, text: str, step_s: int = 15) -> str:
        times = {"__range": self.seconds, "__rate_interval": 4 * step_s, "__interval": step_s}
        known = {name: f"{seconds}s" for name, seconds in times.items()} | {
            "__interval_ms": f"{step_s}000"
        }
        return re.sub(r"\$(\w+)", lambda match: (known | dict(self.chosen))[match[1]], text)

    def step_s(self, target: Mapping[str, Any]) -> int:
        """Return a step that gives at most 240 points, and at least the query's minimum step
        (default: 15 s).
        """
        least = target.get("interval", "15s")
        return max(int(least[:-1]) * {"s": 1, "m": 60, "h": 3_600}[least[-1]], self.seconds // 240)

    def marks(self, board: Mapping[str, Any]) -> Iterator[tuple[float, str]]:
        """Yield the timestamps and colors of the board's annotations."""
        for mark in board.get("annotations", {}).get("list", ()):
            for answer in self.query({"expr": mark["expr"], "refId": "Anno"}):
                yield answer.value[-1] / 1_000, mark["iconColor"]

    def query(self, target: Mapping[str, Any]) -> Iterator[ResultSeries]:
        step_s = self.step_s(target)
        expression = self.filled(target["expr"], step_s)
        if target.get("instant"):
            path = "query"
            when = {"time": self.end_s}
        else:
            path = "query_range"
            begin_s = (self.end_s - self.seconds) // step_s * step_s
            when = {"start": begin_s, "end": self.end_s // step_s * step_s, "step": step_s}
        for one in fetch(self.server, path, query=expression, **when):
            samples = one.get("values") or [one["value"]]
            template = target.get("legendFormat", "")
            legend = re.sub(r"\{\{(\w+)\}\}", _label_of(one["metric"]), template)
            times, values = zip(*((float(t), float(value)) for t, value in samples), strict=True)
            yield ResultSeries(
                target["refId"], " ".join(legend.split()), one["metric"], times, values, step_s
            )


def _label_of(labels: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    return lambda match: labels.get(match[1], "")


def fetch(server: str, path: str, **parameters: object) -> list[dict[str, Any]]:
    """Return the result of a query. Exits with a message if the server does not answer it."""
    url = f"{server.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
    try:
        with urllib.request.urlopen(url, timeout=60) as response:  # noqa: S310  # address given by the user
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
            return result
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        sys.exit(
            f"cannot query {server}: {error}; give the address of a Prometheus or VictoriaMetrics, "
            "such as "
            "http://prometheus:9090, because an exporter does not evaluate the queries of "
            "dashboards"
        )


def picture(board: Mapping[str, Any], view: BoardView) -> Figure:
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    width_px = 24 * _COLUMN_PX
    height_px = rows * _ROW_PX + _TITLE_PX
    figure = Figure(figsize=(width_px / _DPI, height_px / _DPI), dpi=_DPI, facecolor="#f4f5f5")
    figure.text(
        12 / width_px,
        1 - 24 / height_px,
        board["title"],
        fontsize=12,
        va="center",
        color=TEXT,
        weight="bold",
    )

    def box(
        left: float, top: float, right: float, bottom: float
    ) -> tuple[float, float, float, float]:
        return (
            left / width_px,
            1 - bottom / height_px,
            (right - left) / width_px,
            (bottom - top) / height_px,
        )

    times = Times(view.end_s - view.seconds, view.end_s, list(view.marks(board)))
    for panel in board["panels"]:
        position = panel["gridPos"]
        left = position["x"] * _COLUMN_PX
        top = _TITLE_PX + position["y"] * _ROW_PX
        right = left + position["w"] * _COLUMN_PX
        bottom = top + position["h"] * _ROW_PX
        title = view.filled(panel["title"])
        if panel["type"] == "row":
            figure.text(
                (left + 12) / width_px,
                1 - (top + 18) / height_px,
                title,
                fontsize=9,
                va="center",
                color=TEXT,
            )
            continue
        x, y, wide, high = box(left + _GAP_PX, top + _GAP_PX, right - _GAP_PX, bottom - _GAP_PX)
        frame = Rectangle(
            (x, y), wide, high, facecolor="white", edgecolor="#d8d8d8", linewidth=0.8, zorder=-1
        )
        figure.add_artist(frame)
        figure.text(
            x + 8 / width_px,
            y + high - 14 / height_px,
            title,
            fontsize=8,
            va="center",
            color=TEXT,
            weight="bold",
        )
        answers = [answer for target in panel["targets"] for answer in view.query(target)]
        draw(figure.add_axes(box(*_inside(panel, left, top, right, bottom))), panel, answers, times)
    return figure


def _inside(
    panel: Mapping[str, Any], left: float, top: float, right: float, bottom: float
) -> tuple[float, float, float, float]:
    """Return the box inside the panel, with margins for tick labels and a legend."""
    if panel["type"] in ("table", "stat"):
        return left + 14, top + 30, right - 14, bottom - 8
    below = {"timeseries": 84, "xychart": 60, "barchart": 34, "bargauge": 14}[panel["type"]]
    return left + (130 if panel["type"] == "bargauge" else 74), top + 34, right - 18, bottom - below


def _newest_run(server: str, end_s: float, seconds: int) -> str:
    starts = "max by (run_id) (last_over_time(wattline_run_start_timestamp_seconds[{}s]))"
    series = fetch(server, "query", query=f"topk(1, {starts.format(seconds)})", time=end_s)
    return str(series[0]["metric"]["run_id"]) if series else ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m grafana.pictures", description=(__doc__ or "").partition(":")[0]
    )
    parser.add_argument("server", help="address of a Prometheus or a VictoriaMetrics")
    parser.add_argument("--out", type=Path, default=HERE / "pictures")
    parser.add_argument(
        "--end", type=float, default=time.time(), help="Unix time of the end (default: now)"
    )
    parser.add_argument("--hours", type=float, default=1)
    parser.add_argument("--run", help="run shown in detail (default: the newest)")
    options = parser.parse_args(arguments)
    seconds = round(options.hours * 3_600)
    run = options.run or _newest_run(options.server, options.end, seconds)
    chosen = dict.fromkeys(("cluster", "node", "gpu", "model", "experiment"), ".*") | {
        "run": run,
        "price": "0.25",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((HERE / "dashboards").glob("*.json")):
        figure = picture(
            json.loads(path.read_text()), BoardView(options.server, options.end, seconds, chosen)
        )
        figure.savefig(options.out / f"{path.stem}.png", pil_kwargs={"optimize": True})
        print(options.out / f"{path.stem}.png")


if __name__ == "__main__":
    main()
