"""Energy of each GPU from raw power samples with prometheus-api-client and pandas.

`frame` follows its documentation; `lists` loads the samples into pandas as received, which costs
less.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd
from prometheus_api_client import MetricRangeDataFrame, PrometheusConnect


def energy_by_frame(data: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for uuid, rows in MetricRangeDataFrame(data, ts_as_datetime=False).groupby("uuid"):
        yield uuid, float(np.trapezoid(rows["value"], rows.index))


def energy_by_lists(data: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    for series in data:
        rows = pd.DataFrame(series["values"], columns=["t", "value"]).astype(float)
        yield series["metric"]["uuid"], float(np.trapezoid(rows["value"], rows["t"]))


def main() -> None:
    way, address, metric, start_s, end_s = (
        sys.argv[1],
        sys.argv[2],
        sys.argv[3],
        float(sys.argv[4]),
        float(sys.argv[5]),
    )
    start, end = (datetime.fromtimestamp(each, UTC) for each in (start_s - 1, end_s))
    data = PrometheusConnect(url=address).get_metric_range_data(
        metric, start_time=start, end_time=end
    )
    print(json.dumps(dict({"frame": energy_by_frame, "lists": energy_by_lists}[way](data))))


if __name__ == "__main__":
    main()
