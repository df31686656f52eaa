"""Dashboard of the use of GPUs by owner, and of GPUs that use energy without work."""

from __future__ import annotations

from grafana.board import CLUSTER, NODE, NODE_KEY, NODE_LINK, RUN_LINK, Board, named, selector
from grafana.boards.fleet import PRICE
from grafana.panel import Panel, Query, bars, lines
from wattline.contract import metrics as m

_TOP = 20
_GPU_KEY = f"{NODE_KEY}, uuid"
_ON_GPU = f"on ({_GPU_KEY})"
_STEP = "1m"
_SLOWED = 'reason=~"hw_thermal_slowdown|sw_thermal_slowdown|hw_power_brake_slowdown"'

_UTILIZATION = selector(m.GPU_UTILIZATION, 'engine=~"gpu|encoder|decoder"')
_USE = f"max by ({_GPU_KEY}) (max_over_time({_UTILIZATION}[5m]))"
_IDLE = f"({_USE} <= 0.02)"
_IS_IDLE = f"({_USE} <= bool 0.02)"
"""1 for an idle GPU and 0 for another one, so that a sum without idle GPUs is 0 and not absent."""
_OPEN_RUNS = f"({selector(m.RUN_GPU_INFO)} unless on ({NODE_KEY}, run_id) {selector(m.RUN_END)})"
_PODS = selector(m.GPU_POD_INFO)
_HELD = f"(max by ({_GPU_KEY}) ({_OPEN_RUNS}) or max by ({_GPU_KEY}) ({_PODS}))"


def _by_gpu(metric: m.Metric, *matchers: str) -> str:
    return f"max by ({_GPU_KEY}) ({selector(metric, *matchers)})"


_SM = 'domain="sm"'
_CLOCKS_UP = f"{_by_gpu(m.GPU_CLOCK, _SM)} / {_ON_GPU} {_by_gpu(m.GPU_CLOCK_MAX, _SM)} >= 0.5"
_LOADED = f"{_by_gpu(m.GPU_MEMORY_USED)} >= 1073741824"
_EXECUTION_IDLE = f"({_IDLE} and {_ON_GPU} {_LOADED} and {_ON_GPU} {_CLOCKS_UP})"
_POWER = _by_gpu(m.GPU_POWER)
_GPU_IDLE_POWER = selector(m.IDLE_POWER, 'component="gpu"')
_IDLE_POWER = f'label_replace({_GPU_IDLE_POWER}, "uuid", "${{1}}", "device", "(.*)")'
_EXCESS = f"({_POWER} - {_ON_GPU} max by ({_GPU_KEY}) ({_IDLE_POWER}))"
_REQUESTED, _DEFAULT = (
    f"max by ({NODE_KEY}, gpu) ({selector(m.GPU_POWER_LIMIT, kind)})"
    for kind in ('kind="requested"', 'kind="default"')
)
_SLOWED_SHARE = (
    f"max by ({_GPU_KEY}, reason) (rate({selector(m.GPU_CLOCK_EVENT_SECONDS, _SLOWED)}[5m]))"
)


def _largest(key: str, holders: str) -> tuple[Query, Query]:
    """Return the number and the power of the idle GPUs of the holders with the most of them."""
    idle = (
        f"max by ({_GPU_KEY}, {key}) ({holders}) * {_ON_GPU} group_left () ({_POWER} and "
        f"{_ON_GPU} {_IDLE})"
    )
    largest = f"topk({_TOP}, count by (cluster, {key}) ({idle}))"
    return Query(largest), Query(
        f"sum by (cluster, {key}) ({idle}) and on (cluster, {key}) {largest}"
    )


_OWNER = "kind, owner, account, workload"
_POLICY = 'policy="idle_shared"'
_NONE = 'kind="none"'
_GPU = 'component="gpu"'
_ENERGY = selector(m.OWNER_ENERGY, _POLICY)
_KWH = "3600000"
_NO_OWNERS = (
    "No energy of owners in the time range. It needs an exporter with "
    "wattline_owner_energy_joules_total."
)


def _of_owners(by: str, *matchers: str) -> str:
    return f"sum{by} (increase({selector(m.OWNER_ENERGY, _POLICY, *matchers)}[$__range]))"


def _gpu_seconds(by: str, *matchers: str) -> str:
    return f"sum{by} (increase({selector(m.OWNER_GPU_SECONDS, *matchers)}[$__range]))"


def _usage(title: str, description: str, unit: str, expr: str, legend: str) -> Panel:
    return Panel(
        title,
        description,
        unit,
        (Query(expr, legend),),
        "number",
        6,
        5,
        remedy="No energy of owners",
    )


def _largest_by(title: str, description: str, label: str, name: str) -> Panel:
    energy = named(_of_owners(f" by ({label})", 'kind!="none"'), label)
    columns = {label: name, "Value": "energy"}
    return bars(title, description, "joule", f"topk(10, {energy})", columns).without(
        data=_NO_OWNERS
    )


_USED = _usage(
    "Energy", "Energy of all devices over the time range.", "joule", _of_owners(""), "all devices"
)
_COST = _usage(
    "Cost",
    "Kilowatt hours times the price set above.",
    "short",
    f"{_of_owners('')} / {_KWH} * $price",
    "cost",
)
_GPU_TIME = _usage(
    "GPU time",
    "Time for which owners held GPUs, a shared GPU divided equally.",
    "s",
    _gpu_seconds("", 'kind!="none"'),
    "held",
)
_UNATTRIBUTED = _usage(
    "Unattributed GPU energy",
    "Share of the GPUs' energy that belongs to no owner.",
    "percentunit",
    f"{_of_owners('', _NONE, _GPU)} / ({_of_owners('', _GPU)} > 0)",
    "unattributed",
)
_OWNERS = _largest_by(
    "Top owners", "Energy of each user or namespace; the ten largest.", "owner", "owner"
)
_ACCOUNTS = _largest_by(
    "Top accounts", "Energy of each account; the ten largest.", "account", "account"
)
_TOP_OWNERS = f"topk({_TOP}, {_of_owners(f' by ({_OWNER})')})"
_OWNER_TABLE = Panel(
    "Energy, cost and GPU time by owner",
    f"The {_TOP} owners and workloads with the most energy. kind none is the energy of no owner.",
    "short",
    (
        Query(f"{_TOP_OWNERS} / {_KWH}"),
        Query(f"{_TOP_OWNERS} / {_KWH} * $price"),
        Query(f"{_gpu_seconds(f' by ({_OWNER})')} and on ({_OWNER}) {_TOP_OWNERS}"),
    ),
    "table",
    columns={
        "owner": "owner",
        "account": "account",
        "workload": "workload",
        "kind": "kind",
        "Value #A": "energy",
        "Value #B": "cost",
        "Value #C": "GPU time",
    },
    units={"energy": "kwatth", "GPU time": "s"},
    sort="energy",
    remedy=_NO_OWNERS,
)
_OWNER_POWER = Panel(
    "Power by kind of owner",
    "Power attributed to Slurm jobs, pods, containers, services, users and runs of a client; none "
    "is the rest.",
    "watt",
    (Query(f"sum by (kind) (rate({_ENERGY}[$__rate_interval]))", "{{kind}}"),),
    "areas",
    remedy=_NO_OWNERS,
)


def _figure(title: str, description: str, expr: str, legend: str) -> Panel:
    return Panel(
        title,
        description,
        "short",
        (Query(expr, legend),),
        "number",
        6,
        5,
        remedy="None",
        orange_from=1,
    )


_HELD_IDLE_NOW = _figure(
    "Held and idle GPUs",
    "GPUs that a run or a pod holds and that have not worked for five minutes.",
    f"sum({_IS_IDLE} and {_ON_GPU} {_HELD})",
    "GPUs",
)
_EXECUTION_IDLE_NOW = _figure(
    "Execution-idle GPUs",
    "GPUs with at least 1 GiB in use, an SM clock of at least half of the maximum, and no work for "
    "five minutes.",
    f"count({_EXECUTION_IDLE})",
    "GPUs",
)
_SLOWED_NOW = _figure(
    "Throttled GPUs",
    "GPUs that heat or a power brake slows down for over 10 % of the time.",
    f"count(max by ({_GPU_KEY}) ({_SLOWED_SHARE}) > 0.1)",
    "GPUs",
)
_LIMITED_NOW = _figure(
    "GPUs below their default limit",
    "GPUs whose requested power limit is below the default.",
    f"count({_REQUESTED} < on ({NODE_KEY}, gpu) {_DEFAULT})",
    "GPUs",
)
_STATES = Panel(
    "GPUs by state",
    "Working: utilization over 2 % within five minutes. Held: by a run or a pod.",
    "short",
    (
        Query(f"sum({_USE} > bool 0.02)", "working"),
        Query(f"sum({_IS_IDLE} and {_ON_GPU} {_HELD})", "held and idle"),
        Query(f"sum({_IS_IDLE} unless {_ON_GPU} {_HELD})", "free"),
    ),
    "areas",
    step=_STEP,
)
_EXCESS_POWER = Panel(
    "Power of idle GPUs above deep idle",
    "Power above the GPU's own deep-idle power (wattline_idle_power_watts), of GPUs that have not "
    "worked for five "
    "minutes. `analyzer waste` has the joules of each holder.",
    "watt",
    (
        Query(f"sum({_EXCESS} and {_ON_GPU} {_IDLE} and {_ON_GPU} {_HELD})", "held and idle"),
        Query(f"sum({_EXCESS} and {_ON_GPU} {_IDLE} unless {_ON_GPU} {_HELD})", "free"),
    ),
    "areas",
    step=_STEP,
    remedy="No idle power is known yet.",
)
_SLOWED_LINES = lines(
    "Throttled GPUs by reason",
    "Number of GPUs that each reason slows down for over 10 % of the time.",
    "short",
    f"count by (reason) ({_SLOWED_SHARE} > 0.1)",
    "{{reason}}",
).without(data="No GPU is throttled.")
_NO_HOLDER = "No GPU is held and idle."
_RUNS = Panel(
    "Runs with idle GPUs",
    f"Idle GPUs of each open run and their power; the {_TOP} largest. Other GPUs of the run may "
    "work.",
    "short",
    _largest("run_id", _OPEN_RUNS),
    "table",
    columns={"run_id": "run", "cluster": "cluster", "Value #A": "GPUs", "Value #B": "power"},
    units={"power": "watt"},
    links={"run": RUN_LINK},
    sort="GPUs",
    remedy=_NO_HOLDER,
)
_POD_TABLE = Panel(
    "Pods with idle GPUs",
    f"Idle GPUs of each pod and their power; the {_TOP} largest.",
    "short",
    _largest("namespace, pod", _PODS),
    "table",
    columns={
        "namespace": "namespace",
        "pod": "pod",
        "cluster": "cluster",
        "Value #A": "GPUs",
        "Value #B": "power",
    },
    units={"power": "watt"},
    sort="GPUs",
    remedy=_NO_HOLDER,
)
_LIMITS = Panel(
    "Power limits below the default",
    f"Requested limit of each GPU that has a lower one than its default; at most {_TOP}. A sweep "
    "sets it on purpose.",
    "watt",
    (Query(f"bottomk({_TOP}, {_REQUESTED} < on ({NODE_KEY}, gpu) {_DEFAULT})"),),
    "table",
    columns={"instance": "node", "cluster": "cluster", "gpu": "GPU", "Value": "limit"},
    links={"node": NODE_LINK},
    remedy="All GPUs have their default limit.",
)
_SLOWED_NODES = Panel(
    "Throttled nodes",
    f"Mean share of time in which heat or a power brake slowed down a node's GPUs; the {_TOP} "
    "largest.",
    "percentunit",
    (Query(f"topk({_TOP}, avg by ({NODE_KEY}, reason) ({_SLOWED_SHARE}) > 0)"),),
    "table",
    columns={
        "instance": "node",
        "cluster": "cluster",
        "reason": "reason",
        "Value": "share of time",
    },
    sort="share of time",
    links={"node": NODE_LINK},
    remedy="No GPU is throttled.",
)

WASTE = Board(
    "wattline-waste",
    "Wattline: usage and waste",
    "Energy, cost and GPU time of each owner, and GPUs that use energy without work. The states "
    "are defined as in "
    "`analyzer waste`, without its minimum duration.",
    (CLUSTER, NODE, PRICE),
    (
        (
            "Usage",
            (
                _USED,
                _COST,
                _GPU_TIME,
                _UNATTRIBUTED,
                _OWNERS,
                _ACCOUNTS,
                _OWNER_TABLE,
                _OWNER_POWER,
            ),
        ),
        ("Waste now", (_HELD_IDLE_NOW, _EXECUTION_IDLE_NOW, _SLOWED_NOW, _LIMITED_NOW)),
        ("States", (_STATES, _EXCESS_POWER)),
        ("Holders", (_RUNS, _POD_TABLE)),
        ("Limits and throttling", (_LIMITS, _SLOWED_NODES, _SLOWED_LINES)),
    ),
    since="now-6h",
    refresh="1m",
)
