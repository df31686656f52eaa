"""GPUs of imported files, and their series by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.importers.content import LONGEST_LABEL, FileContent, UnreadableError, short_uuid
from analyzer.importers.spool import StoredSamples, in_order
from exporter.contract import metrics as m
from exporter.contract.metrics import Metric

IMPORTED = "imported-"
"""Prefix of the name of a GPU whose UUID is in no file."""


@dataclass(frozen=True, slots=True)
class ImportedGpu:
    """GPU of imported files."""

    index: str
    uuid: str
    info: Mapping[str, str] = field(default_factory=dict)


def imported_gpus(contents: Sequence[FileContent], node: str) -> list[ImportedGpu]:
    """Return the GPUs by index; one whose UUID is in no file gets a name that no driver gives.

    Raises UnreadableError if files give two UUIDs for one index.
    """
    uuids: dict[str, str] = {}
    info: dict[str, dict[str, str]] = {}
    for content in contents:
        for _, labels in content.series:
            where = dict(labels)
            if "gpu" in where:
                _name(uuids, where["gpu"], where["uuid"])
        for index, more in content.gpu_info.items():
            info.setdefault(index, {}).update(more)
    for energy in (energy for content in contents for run in content.runs for energy in run.energies):
        if energy.component == "gpu" and energy.device not in {*uuids, *uuids.values()}:
            is_uuid = energy.device.startswith(("GPU-", "MIG-"))
            index = (energy.index or short_uuid(energy.device)) if is_uuid else energy.device
            _name(uuids, index, energy.device if is_uuid else "")
    return [
        ImportedGpu(index, uuid or f"{IMPORTED}{node}-{index}", info.get(index, {})) for index, uuid in uuids.items()
    ]


def _name(uuids: dict[str, str], index: str, uuid: str) -> None:
    known = uuids.get(index, "")
    if uuid and known not in ("", uuid):
        raise UnreadableError(
            f"two files disagree about GPU {index}: it is {known} and {uuid}, on two nodes or after a reboot; "
            "import the files of each node separately, each with its own --node"
        )
    uuids[index] = uuid or known


@dataclass(frozen=True, slots=True, eq=False)
class ImportedSeries:
    """Series by time with the labels of its metric and the instance."""

    metric: Metric
    labels: Mapping[str, str]
    samples: StoredSamples


def clean_series(contents: Sequence[FileContent], gpus: list[ImportedGpu]) -> list[ImportedSeries]:
    by_index = {gpu.index: gpu.uuid for gpu in gpus}
    found: dict[tuple[Metric, tuple[tuple[str, str], ...]], list[StoredSamples]] = {}
    stems = Counter(content.path.stem for content in contents)
    for content in contents:
        for (metric, labels), samples in content.series.items():
            where = dict(labels)
            if metric is m.HWMON_POWER and stems[content.path.stem] > 1:
                where["sensor"] = str(content.path)[-LONGEST_LABEL:]
            if "gpu" in where:
                where["uuid"] = by_index[where["gpu"]]
            found.setdefault((metric, tuple(sorted(where.items()))), []).append(samples)
    return [ImportedSeries(metric, dict(labels), in_order(samples)) for (metric, labels), samples in found.items()]
