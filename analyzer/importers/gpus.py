"""What the GPUs of imported files are called, so that each is one, and none has a number that no file tells. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from analyzer.importers.content import Content, short
from analyzer.sources.error import SourceError

IMPORTED = "imported-"
"""How the name of a GPU begins of which no file tells the UUID."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: str
    uuid: str
    info: Mapping[str, str] = field(default_factory=dict)


def gpus_of(contents: Sequence[Content], node: str) -> list[Gpu]:
    """By index; one that no file names by UUID gets a name that no driver gives."""
    uuids: dict[str, str] = {}
    info: dict[str, dict[str, str]] = {}
    for content in contents:
        for _, labels in content.tracks.found:
            where = dict(labels)
            if "gpu" in where:
                _name(uuids, where["gpu"], where["uuid"])
        for index, more in content.gpu_info.items():
            info.setdefault(index, {}).update(more)
    for energy in (energy for content in contents for run in content.runs for energy in run.energies):
        if energy.component == "gpu" and energy.device not in {*uuids, *uuids.values()}:
            is_uuid = energy.device.startswith(("GPU-", "MIG-"))
            index = (energy.index or short(energy.device)) if is_uuid else energy.device
            _name(uuids, index, energy.device if is_uuid else "")
    return [Gpu(index, uuid or f"{IMPORTED}{node}-{index}", info.get(index, {})) for index, uuid in uuids.items()]


def _name(uuids: dict[str, str], index: str, uuid: str) -> None:
    """Raises SourceError where files name two cards by one index: laid over each other they would be one."""
    known = uuids.get(index, "")
    if uuid and known not in ("", uuid):
        raise SourceError(
            f"two files name GPU {index}, as {known} and as {uuid}: they are of two nodes, or of other boots",
            "import the files of each node by themselves, each with its own --node",
        )
    uuids[index] = uuid or known
