"""Dashboard of the requests to LLM servers."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, Board, named, selector
from grafana.panel import Panel, Query, lines
from wattline.contract import metrics as m

_BY = "cluster, model, role"
_LEGEND = "{{cluster}} {{model}} {{role}}"
_NONE = (
    "No request in the time range. Servers report them by OTLP traces (exporter serve "
    "--otlp.traces) or the run API."
)


def _rate(metric: m.Metric, by: str = _BY, window: str = "$__rate_interval") -> str:
    return f"sum by ({by}) (rate({selector(metric)}[{window}]))"


def _quantile(quantile: float) -> str:
    return f"histogram_quantile({quantile}, {_rate(m.REQUEST_ENERGY_BUCKET, f'{_BY}, le')})"


_ENERGY = Panel(
    "Energy of a request",
    "Median and 95 % quantile of the requests that became final, with their share of the idle "
    "energy. It is "
    "interpolated within the buckets of the histogram; `analyzer requests` has the exact figures.",
    "joule",
    tuple(Query(_quantile(each), f"{_LEGEND} p{100 * each:g}") for each in (0.5, 0.95)),
    remedy=_NONE,
)
_POWER = Panel(
    "Power of requests",
    "Energy of the requests that became final, per second. The rest of the GPUs' power belongs to "
    "no request.",
    "watt",
    (Query(_rate(m.REQUEST_ENERGY_TOTAL), _LEGEND),),
    "areas",
    remedy=_NONE,
)
_RATE = lines(
    "Requests per second", "Requests that became final.", "suffix:/s", _rate(m.REQUESTS), _LEGEND
).without(data=_NONE)
_MEAN = lines(
    "Mean energy of a request",
    "Energy divided by the number of requests that have an energy, both in five minutes.",
    "joule",
    f"{_rate(m.REQUEST_ENERGY_TOTAL, window='5m')} / ({_rate(m.REQUEST_ENERGY_COUNT, window='5m')} "
    "> 0)",
    _LEGEND,
).without(data=_NONE)
_TOP = 20
_USER = "cluster, user, model"


def _of_users(metric: m.Metric) -> str:
    return named(f"sum by ({_USER}) (increase({selector(metric)}[$__range]))", "user")


_LARGEST = f"topk({_TOP}, {_of_users(m.REQUEST_ENERGY_TOTAL)})"
_USERS = Panel(
    "Energy of requests by user",
    f"Users and models with the most energy; the {_TOP} largest. Users are known with "
    "`--requests.labels user`.",
    "short",
    (
        Query(_LARGEST),
        Query(f"{_of_users(m.REQUESTS)} and on ({_USER}) {_LARGEST}"),
        Query(f"{_LARGEST} / on ({_USER}) ({_of_users(m.REQUEST_ENERGY_COUNT)} > 0)"),
    ),
    "table",
    columns={
        "user": "user",
        "model": "model",
        "cluster": "cluster",
        "Value #A": "energy",
        "Value #B": "requests",
        "Value #C": "per request",
    },
    units={"energy": "joule", "per request": "joule"},
    sort="energy",
    remedy=_NONE,
)
_REJECTED = lines(
    "Requests that do not count",
    "Reported requests that are late, repeated, or have a wrong clock, by reason.",
    "suffix:/s",
    _rate(m.REQUESTS_REJECTED, "cluster, instance, reason"),
    "{{cluster}} {{instance}} {{reason}}",
).without(data="No rejected request in the time range.")

REQUESTS_BOARD = Board(
    "wattline-requests",
    "Wattline: requests",
    "Energy of the requests to LLM servers. `analyzer requests` reports it by user, with "
    "intervals.",
    (CLUSTER, NODE),
    (("Requests", (_ENERGY, _MEAN, _POWER, _RATE, _USERS, _REJECTED)),),
)
