"""GPUs of imported files, and their series by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from wattline.contract import metrics as m
from wattline.contract.api import MAX_LABEL_VALUE
from wattline.contract.metrics import Metric
from wattline_analyzer.core.run_report import DUPLICATE_SAMPLES
from wattline_analyzer.importers.content import (
    FileContent,
    UnreadableError,
    short_uuid,
)
from wattline_analyzer.importers.spool import OrderedSamples, StoredSamples, merge_by_time

IMPORTED = "imported-"
"""Prefix of the name of a GPU whose UUID is in no file."""


@dataclass(frozen=True, slots=True)
class ImportedGpu:
    """GPU of imported files."""

    index: str
    uuid: str
    info: Mapping[str, str] = field(default_factory=dict)


def imported_gpus(contents: Sequence[FileContent], node: str) -> list[ImportedGpu]:
    """Return the GPUs by index; a GPU whose UUID is in no file gets a name with the prefix
    IMPORTED.

    Raises UnreadableError if the files give two UUIDs for one index, or two indices for one UUID.
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
    for energy in (
        energy for content in contents for run in content.runs for energy in run.energies
    ):
        if energy.component == "gpu" and energy.device not in {*uuids, *uuids.values()}:
            is_uuid = energy.device.startswith(("GPU-", "MIG-"))
            index = (energy.index or short_uuid(energy.device)) if is_uuid else energy.device
            _name(uuids, index, energy.device if is_uuid else "")
    return [
        ImportedGpu(index, uuid or f"{IMPORTED}{node}-{index}", info.get(index, {}))
        for index, uuid in _one_index_each(uuids).items()
    ]


def _one_index_each(uuids: Mapping[str, str]) -> dict[str, str]:
    """Return the UUIDs by index without the names that files without indices give to the same GPUs.

    Raises UnreadableError for a UUID with two indices, of which one would hide the other's energy.
    """
    found: dict[str, str] = {}
    for index, uuid in sorted(uuids.items(), key=lambda item: not item[0].isdecimal()):
        known = next((other for other, name in found.items() if uuid and name == uuid), None)
        if known is None:
            found[index] = uuid
        elif index.isdecimal():
            raise UnreadableError(
                f"cannot import GPU {uuid}: its index is {known} and {index}, of two GPUs with one "
                "UUID or after a "
                "reboot; import the lines of each index separately, each with its own --node"
            )
    return {index: uuid for index, uuid in uuids.items() if index in found}


def _name(uuids: dict[str, str], index: str, uuid: str) -> None:
    known = uuids.get(index, "")
    if uuid and known not in ("", uuid):
        raise UnreadableError(
            f"cannot import GPU {index}: its UUID is {known} and {uuid}, on two nodes or after a "
            "reboot; "
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
    """Return the series of all files. Raises UnreadableError for samples of two devices in one
    series.
    """
    by_index = {gpu.index: gpu.uuid for gpu in gpus}
    index_of = {gpu.uuid: gpu.index for gpu in gpus}
    found: dict[
        tuple[Metric, tuple[tuple[str, str], ...]], list[tuple[FileContent, bool, StoredSamples]]
    ] = {}
    stems = Counter(content.path.stem for content in contents)
    for content in contents:
        ordered = {key: merge_by_time([samples]) for key, samples in content.series.items()}
        _check_file(content, ordered)
        for (metric, labels), one in ordered.items():
            where = dict(labels)
            is_known = bool(where.get("uuid"))
            if metric is m.HWMON_POWER and stems[content.path.stem] > 1:
                where["sensor"] = str(content.path)[-MAX_LABEL_VALUE:]
            if "gpu" in where:
                where["uuid"] = where.get("uuid") or by_index[where["gpu"]]
                where["gpu"] = index_of[where["uuid"]]
            found.setdefault((metric, tuple(sorted(where.items()))), []).append(
                (content, is_known, one.samples)
            )
    return [
        ImportedSeries(metric, dict(labels), _joined(dict(labels), one))
        for (metric, labels), one in found.items()
    ]


def _check_file(
    content: FileContent,
    ordered: Mapping[tuple[Metric, tuple[tuple[str, str], ...]], OrderedSamples],
) -> None:
    """Add a note of samples with one time and different values. Raises UnreadableError if they are
    of two devices.
    """
    different: dict[str, int] = {}
    for (_, labels), one in ordered.items():
        where = dict(labels)
        device = _device(where)
        is_named = content.form != "nvidia-smi" or bool(where.get("uuid"))
        if one.overlap_s is not None:
            raise UnreadableError(
                f"cannot import {content.path}: the times of {device} go back, and its samples "
                "overlap at "
                f"{_moment(one.overlap_s)}: the file has two devices or nodes, or its clock was "
                "set back; import each "
                "part separately with its own --node; if only the lines are not in order, sort "
                "them by time"
            )
        if one.different_s is not None and not is_named:
            raise UnreadableError(
                f"cannot import {content.path}: {device} has two different values at "
                f"{_moment(one.different_s)}: the "
                "file has two devices or nodes; import each separately with its own --node, or log "
                "the uuid"
            )
        different[device] = max(different.get(device, 0), one.different)
    for device, count in different.items():
        if count:
            content.notes.append(_different_text(content.path, device, count))
            content.caveats.append(DUPLICATE_SAMPLES)


def _joined(
    where: Mapping[str, str], parts: Sequence[tuple[FileContent, bool, StoredSamples]]
) -> StoredSamples:
    """Return the samples of one series of several files; two logs of a GPU with a UUID may overlap.

    Raises UnreadableError if other files of one format overlap.
    """
    joined = merge_by_time([samples for _, _, samples in parts])
    unnamed = [content for content, is_known, _ in parts if not is_known]
    forms = Counter(content.form for content in unnamed)
    if joined.overlap_s is not None and max(forms.values(), default=0) > 1:
        names = " and ".join(str(content.path) for content in unnamed)
        raise UnreadableError(
            f"cannot import {names}: both have {_device(where)} at {_moment(joined.overlap_s)} "
            "with different samples: "
            "they are of two devices or nodes; import each separately with its own --node, or log "
            "the uuid"
        )
    if joined.different:
        content = parts[-1][0]
        content.notes.append(_different_text(content.path, _device(where), joined.different))
        content.caveats.append(DUPLICATE_SAMPLES)
    return joined.samples


def _device(where: Mapping[str, str]) -> str:
    if "gpu" in where:
        return f"GPU {where['gpu']}"
    return f"CPU {where['package']}" if "package" in where else "the meter"


def _moment(t_s: float) -> str:
    return f"{datetime.fromtimestamp(t_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _different_text(path: Path, device: str, count: int) -> str:
    samples = "a sample" if count == 1 else f"{count} samples"
    return (
        f"{path}: left out {samples} of {device} with the time of another one and a different value"
    )
