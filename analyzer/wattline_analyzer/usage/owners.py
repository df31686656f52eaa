"""Sums of the counters by owner, which are right for runs that are gone and for any window."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from wattline.contract import metrics as m
from wattline.contract.metrics import Metric
from wattline_analyzer.core.sources.base import FetchError
from wattline_analyzer.core.sources.promql import QueryCounter, QuerySpan, device_increase, sum_by
from wattline_analyzer.usage.cut import NODE, FleetCut, device_keys
from wattline_analyzer.usage.fleet import Counts, Keys, Sums
from wattline_analyzer.usage.queries import POLICY, device_emission_queries, device_energy_queries
from wattline_analyzer.usage.results import FleetClient, FleetRequest, SpanQueries, rises
from wattline_analyzer.usage.tallies import LOCAL, Tally, WindowTallies

OWNER, USER, NAMESPACE = "owner", "user", "namespace"
_KEYS = ("kind", OWNER, USER, NAMESPACE, "account", "workload", NODE)
_NO_OWNER, _PODS, _SERVICES = "none", "kubernetes", "service"
_CLOSE = 0.01
"""Ratio to the devices' energy up to which the counters by owner may lack energy."""
_DETAILS: Mapping[Metric, Keys] = {
    m.OWNER_ENERGY: ("component",),
    m.OWNER_EMISSIONS: ("basis", "quality"),
    m.OWNER_GPU_SECONDS: (),
}
METRICS: tuple[Metric, ...] = tuple(_DETAILS)


@dataclass(frozen=True, slots=True)
class OwnerSums:
    """Sums as in `Counts`; those of no owner are `unattributed`."""

    claimed: Sums
    unattributed: Sums
    grams: Sums
    unattributed_grams: Sums
    gpu_seconds: Sums
    unattributed_gpu_seconds: Sums
    devices: Sums | None = None
    device_grams: Sums | None = None


def accepts_owners(by: Sequence[str]) -> bool:
    """Return True if the counters by owner have all keys."""
    return all(key in _KEYS for key in by)


def owner_keys(by: Keys, labels: Mapping[str, str]) -> Keys:
    """Return the texts of the keys for labels of a counter.

    The owner of a pod is its namespace, that of a service its unit, and else a user.
    """
    kind, owner = labels.get("kind", ""), labels.get("owner", "")
    if kind == _NO_OWNER:
        return device_keys(by, labels)
    texts = {
        **{name: labels.get(name, "") for name in ("kind", "account", "workload")},
        OWNER: owner,
        USER: "" if kind in (_PODS, _SERVICES) else owner,
        NAMESPACE: owner if kind == _PODS else "",
        NODE: labels.get("instance", ""),
    }
    return tuple(texts[key] for key in by)


def prefer_owners(counts: Counts, owners: OwnerSums | None, request: FleetRequest) -> Counts:
    """Return the sums with those by owner, unless these lack more of the devices' energy than the
    series of runs.

    Emissions by owner are of one policy. For another one, the series of runs are preferred if they
    have the devices' energy; else there are no emissions. Raises FetchError without counters by
    owner if these have a key that runs do not have.
    """
    by, has_grams = request.by, bool(counts.device_grams)
    if owners is None:
        return _by_runs(counts, by)
    devices_j = sum(counts.devices.values())
    own_devices_j = devices_j if owners.devices is None else sum(owners.devices.values())
    lacking_j = abs(
        own_devices_j - sum(owners.claimed.values()) - sum(owners.unattributed.values())
    )
    by_runs_j = abs(devices_j - sum(counts.claimed.values()) - sum(counts.unclaimed.values()))
    if not owners.unattributed or lacking_j > max(by_runs_j, _CLOSE * devices_j):
        return _by_runs(counts, by)
    is_other_policy = has_grams and request.policy != POLICY
    if is_other_policy and OWNER not in by and by_runs_j <= _CLOSE * devices_j:
        return counts
    has_grams = has_grams and not is_other_policy
    device_grams = counts.device_grams if owners.device_grams is None else owners.device_grams
    if OWNER in by:  # the series of runs have no such key
        counts = replace(
            counts, runs={}, work={}, working={}, unmeasured={}, certain={}, squared_halves={}
        )
    return replace(
        counts,
        devices=counts.devices if owners.devices is None else owners.devices,
        device_grams=device_grams if has_grams else {},
        claimed=owners.claimed,
        unclaimed=owners.unattributed,
        grams=owners.grams if has_grams else {},
        unattributed_grams=owners.unattributed_grams if has_grams else {},
        gpu_seconds=owners.gpu_seconds,
        unattributed_gpu_seconds=owners.unattributed_gpu_seconds,
        by_owners=True,
        emissions_left_out=is_other_policy,
    )


def _by_runs(counts: Counts, by: Keys) -> Counts:
    if OWNER in by:
        raise FetchError(
            f"no counters by owner of the whole window at {counts.means.server}, or --by has a "
            "label of runs",
            "give --by user, namespace or another label",
        )
    return counts


def queried_owner_sums(client: FleetClient, request: FleetRequest) -> OwnerSums | None:
    """Return the sums of a server; None if the keys need labels of runs, or without such
    counters.
    """
    if not accepts_owners(request.by) or _has_ambiguous_owners(client):
        return None
    started = {
        metric: client.sums(
            _increases(client.cut, metric, request.policy), ("kind", *details), owner_keys
        )
        for metric, details in _DETAILS.items()
    }
    if not started[m.OWNER_ENERGY].result():
        return None
    owners = _owner_sums({metric: sums.result() for metric, sums in started.items()})
    if not client.cut.recorded:
        return owners
    # the recording rules count the edges of the window in another way
    cut = replace(client.cut, recorded=False)
    devices = client.sums(rises(cut, device_energy_queries), ("component",), device_keys)
    grams = client.sums(rises(cut, device_emission_queries), ("basis", "quality"), device_keys)
    return replace(
        owners, devices=devices.result(), device_grams=grams.result() if request.emissions else {}
    )


def _increases(cut: FleetCut, metric: Metric, policy: str) -> SpanQueries:
    matchers = f'policy="{policy}"' if "policy" in metric.labels else ""
    counter = QueryCounter(metric.name, ("instance", *metric.labels), matchers)
    labels = ["kind", *_DETAILS[metric]]
    labels += [name for name in ("account", "workload") if name in cut.by]
    labels += ["owner"] if {OWNER, USER, NAMESPACE} & set(cut.by) else []
    labels += ["instance"] if NODE in cut.by else []

    def texts(span: QuerySpan) -> Iterator[tuple[float, str]]:
        yield 1.0, sum_by(labels, device_increase(counter, span, cut.dialect))

    return texts


def _has_ambiguous_owners(client: FleetClient) -> bool:
    """Return True if the owner of a run may be a user where the key is a namespace, or the
    reverse.
    """
    cut = client.cut
    counts = [
        client.values(f"count(max_over_time({m.RUN_INFO.name}{{{text}}}{cut.whole.range}))")
        for text in _ambiguous(cut.by, pods=cut.pods)
    ]
    return any(count.result() != [] for count in counts)


def _ambiguous(by: Sequence[str], *, pods: bool) -> list[str]:
    """Return matchers of runs whose owner has another meaning than the key."""
    groups = f'label_discovered=~"{_PODS}|{_SERVICES}"'
    found = []
    if USER in by:
        found += [
            f'{groups},label_user!=""',
            f'{groups.replace("=~", "!~")},label_user="",label_namespace!=""',
        ]
    if NAMESPACE in by:
        found += [f'label_discovered!="{_PODS}",label_namespace!=""']
        found += [
            f'label_discovered="{_PODS}",{text}'
            for text in ('label_user!=""', 'label_namespace=""')
        ]
        found += ['label_discovered=""'] if pods else []
    return found


def local_owner_sums(window: WindowTallies, request: FleetRequest) -> OwnerSums | None:
    """Return the sums of an exporter or a history, as of a server."""
    if not accepts_owners(request.by) or _has_ambiguous_runs(window, request.by):
        return None
    sums = {metric: _rises(window, metric, request) for metric in METRICS}
    return _owner_sums(sums) if sums[m.OWNER_ENERGY] else None


def _has_ambiguous_runs(window: WindowTallies, by: Sequence[str]) -> bool:
    pods = any(True for _ in window.of(m.GPU_POD_INFO))
    for tally in window.of(m.RUN_INFO):
        kind, user, namespace = (
            tally.labels.get(f"label_{name}", "") for name in ("discovered", USER, NAMESPACE)
        )
        if USER in by and (user if kind in (_PODS, _SERVICES) else namespace and not user):
            return True
        is_other = (user or not namespace) if kind == _PODS else (namespace or (pods and not kind))
        if NAMESPACE in by and is_other:
            return True
    return False


def _rises(window: WindowTallies, metric: Metric, request: FleetRequest) -> Sums:
    found: defaultdict[tuple[Keys, Keys], float] = defaultdict(float)
    for tally in window.of(metric):
        if tally.labels.get("policy", request.policy) == request.policy:
            found[
                _local_keys(request.by, tally), _texts(("kind", *_DETAILS[metric]), tally.labels)
            ] += tally.rise
    return dict(found)


def _local_keys(by: Keys, tally: Tally) -> Keys:
    return owner_keys(by, {**tally.labels, "instance": tally.labels.get("instance", "") or LOCAL})


def _texts(names: Sequence[str], labels: Mapping[str, str]) -> Keys:
    return tuple(labels.get(name, "") for name in names)


def _owner_sums(sums: Mapping[Metric, Sums]) -> OwnerSums:
    energy, grams, seconds = (
        sums[metric] for metric in (m.OWNER_ENERGY, m.OWNER_EMISSIONS, m.OWNER_GPU_SECONDS)
    )
    owned: Callable[[str], bool] = _NO_OWNER.__ne__
    unowned: Callable[[str], bool] = _NO_OWNER.__eq__
    return OwnerSums(
        claimed=_of_kind(energy, owned),
        unattributed=_of_kind(energy, unowned),
        grams=_of_kind(grams, owned),
        unattributed_grams=_of_kind(grams, unowned),
        gpu_seconds=_of_kind(seconds, owned),
        unattributed_gpu_seconds=_of_kind(seconds, unowned),
    )


def _of_kind(sums: Sums, accepts: Callable[[str], bool]) -> Sums:
    """Return the sums of some kinds, without the kind."""
    found: defaultdict[tuple[Keys, Keys], float] = defaultdict(float)
    for (keys, (kind, *details)), value in sums.items():
        if accepts(kind):
            found[keys, tuple(details)] += value
    return dict(found)
