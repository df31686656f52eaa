"""Dashboard of a whole fleet: bounded queries for thousands of GPUs, with links to the single
node.
"""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, NODE_KEY, NODE_LINK, Board, selector
from grafana.panel import Panel, Query
from wattline.contract import metrics as m

_TOP = 20
_WORKS = 0.02
"""Utilization above which a GPU works, as in `analyzer waste`."""
_GPU = f"{NODE_KEY}, gpu"
_UTILIZATION = selector(m.GPU_UTILIZATION, 'engine="gpu"')
_POWER = selector(m.GPU_POWER)
_LIMIT = selector(m.GPU_POWER_LIMIT, 'kind="enforced"')
_HEAT = selector(m.GPU_TEMPERATURE, 'sensor="gpu"')
_UP = selector(m.GPU_UP)
_EVENTS = selector(m.GPU_CLOCK_EVENT_SECONDS, 'reason!~"gpu_idle|display_clock_setting"')
_NODE_COLUMNS = {"instance": "node", "cluster": "cluster"}
_BANDS = (
    ("idle, up to 2 %", None, _WORKS),
    ("2 to 50 %", _WORKS, 0.5),
    ("50 to 90 %", 0.5, 0.9),
    ("over 90 %", 0.9, None),
)


def _band(low: float | None, high: float | None) -> str:
    """Return the number of GPUs in a band of utilization."""
    above = f"({_UTILIZATION} > bool {low})"
    below = f"({_UTILIZATION} <= bool {high})"
    return f"sum({below if low is None else above if high is None else f'{above} * {below}'})"


def _figure(title: str, description: str, unit: str, *queries: Query) -> Panel:
    return Panel(title, description, unit, queries, "number", 6, 5, remedy="No GPU")


def _of_top_nodes(expr: str) -> Query:
    return Query(f"{expr} and on ({NODE_KEY}) topk({_TOP}, sum by ({NODE_KEY}) ({_POWER}))")


_GPUS = _figure(
    "GPUs",
    "GPUs that respond, and GPUs that are silent.",
    "short",
    Query(f"sum({_UP})", "respond"),
    Query(f"count({_UP}) - sum({_UP})", "silent"),
)
_NOW = _figure(
    "Power",
    "Power of all GPUs, and the sum of their power limits.",
    "watt",
    Query(f"sum({_POWER})", "power"),
    Query(f"sum({_LIMIT})", "limit"),
)
_USE = _figure(
    "Utilization",
    "Share of the GPUs that work (utilization over 2 %), and mean utilization.",
    "percentunit",
    Query(f"sum({_UTILIZATION} > bool {_WORKS}) / count({_UTILIZATION})", "work"),
    Query(f"avg({_UTILIZATION})", "mean"),
)
_ENERGY = _figure(
    "Energy",
    "Energy of all GPUs over the time range.",
    "joule",
    Query(f"sum(increase({selector(m.GPU_ENERGY)}[$__range]))", "GPUs"),
)
_BY_CLUSTER = Panel(
    "Power by cluster",
    "Power of all GPUs of a cluster.",
    "watt",
    (Query(f"sum by (cluster) ({_POWER})", "cluster {{cluster}}"),),
    "areas",
)
_STATES = Panel(
    "GPUs by utilization",
    "Number of GPUs in each band of utilization.",
    "short",
    tuple(Query(_band(low, high), name) for name, low, high in _BANDS),
    "areas",
)
_QUANTILES = Panel(
    "Power of the GPUs",
    "Median, and the tenth of the GPUs with the lowest and the highest power.",
    "watt",
    tuple(
        Query(f"quantile({share}, {_POWER})", name)
        for name, share in (
            ("highest tenth, from", 0.9),
            ("median", 0.5),
            ("lowest tenth, up to", 0.1),
        )
    ),
)
_TEMPERATURES = Panel(
    "Temperature of the GPUs",
    "Hottest GPU, hottest tenth, and median.",
    "celsius",
    (
        Query(f"max({_HEAT})", "hottest"),
        Query(f"quantile(0.9, {_HEAT})", "hottest tenth, from"),
        Query(f"quantile(0.5, {_HEAT})", "median"),
    ),
)
_NODES = Panel(
    "Nodes with the highest power",
    f"The {_TOP} nodes with the highest power of their GPUs. A node links to its dashboard.",
    "short",
    (
        _of_top_nodes(f"sum by ({NODE_KEY}) ({_POWER})"),
        _of_top_nodes(f"count by ({NODE_KEY}) ({_POWER})"),
        _of_top_nodes(f"avg by ({NODE_KEY}) ({_UTILIZATION})"),
        _of_top_nodes(f"sum by ({NODE_KEY}) ({_UTILIZATION} <= bool {_WORKS})"),
    ),
    "table",
    columns={
        **_NODE_COLUMNS,
        "Value #A": "power",
        "Value #B": "GPUs",
        "Value #C": "utilization",
        "Value #D": "idle GPUs",
    },
    units={"power": "watt", "utilization": "percentunit"},
    sort="power",
    links={"node": NODE_LINK},
    remedy="No GPU",
)
_IDLE_NODES = Panel(
    "Nodes with the most idle GPUs",
    f"The {_TOP} nodes with the highest number of GPUs whose utilization is at most 2 %.",
    "short",
    (Query(f"topk({_TOP}, sum by ({NODE_KEY}) ({_UTILIZATION} <= bool {_WORKS}) > 0)"),),
    "table",
    columns={**_NODE_COLUMNS, "Value": "idle GPUs"},
    sort="idle GPUs",
    links={"node": NODE_LINK},
    remedy="No GPU is idle.",
)
_HOTTEST = Panel(
    "Hottest GPUs",
    f"The {_TOP} GPUs with the highest temperature.",
    "celsius",
    (Query(f"topk({_TOP}, max by ({_GPU}) ({_HEAT}))"),),
    "table",
    columns={**_NODE_COLUMNS, "gpu": "GPU", "Value": "temperature"},
    sort="temperature",
    links={"node": NODE_LINK},
)
_REASONS = Panel(
    "Clock event reasons by node",
    f"Mean share of time in which a reason reduced the clocks of a node's GPUs; the {_TOP} "
    "largest.",
    "percentunit",
    (Query(f"topk({_TOP}, avg by ({NODE_KEY}, reason) (rate({_EVENTS}[5m])) > 0)"),),
    "table",
    columns={**_NODE_COLUMNS, "reason": "reason", "Value": "share of time"},
    sort="share of time",
    links={"node": NODE_LINK},
    remedy="No reason reduces the clocks.",
)
_SILENT = Panel(
    "Silent GPUs",
    f"GPUs that do not respond, at most {_TOP}.",
    "short",
    (Query(f"topk({_TOP}, max by ({_GPU}, uuid) ({_UP}) == 0)"),),
    "table",
    columns={**_NODE_COLUMNS, "gpu": "GPU", "uuid": "UUID", "Value": ""},
    links={"node": NODE_LINK},
    remedy="All GPUs respond.",
)
_XIDS = Panel(
    "XID errors",
    f"Errors of each GPU since its exporter was installed; the {_TOP} largest.",
    "short",
    (
        Query(
            f"topk({_TOP}, max by ({_GPU}, xid) "
            f"(max_over_time({selector(m.GPU_XID_ERRORS)}[$__range])) > 0)"
        ),
    ),
    "table",
    columns={**_NODE_COLUMNS, "gpu": "GPU", "xid": "XID", "Value": "errors"},
    sort="errors",
    links={"node": NODE_LINK},
    remedy="No XID error.",
)

OVERVIEW = Board(
    "wattline-overview",
    "Wattline: overview",
    "State of thousands of GPUs: power, utilization, temperature, and the nodes that stand out. No "
    "query returns more "
    f"than {_TOP} rows, or a line for each cluster.",
    (CLUSTER, NODE),
    (
        ("Now", (_GPUS, _NOW, _USE, _ENERGY)),
        ("All GPUs", (_BY_CLUSTER, _STATES, _QUANTILES, _TEMPERATURES)),
        (
            "Nodes and GPUs that stand out",
            (_NODES, _IDLE_NODES, _HOTTEST, _REASONS, _SILENT, _XIDS),
        ),
    ),
    since="now-3h",
    refresh="1m",
)
