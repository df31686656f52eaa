"""Choice of a run's GPUs, by UUID where possible.

Inside a container or a job's cgroup, index 0 can be a different GPU than the exporter's index 0.
`nvidia-smi -L` in the same namespace gives the UUIDs.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")
_LISTED = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[^)]+)\)", re.MULTILINE)
SMI_TIMEOUT_S = 20.0
"""Time limit of nvidia-smi: without persistence mode each call initializes every GPU."""


GpusOfRun = str | int | Iterable[str | int] | None
"""GPUs of a run in Python: the text of `--gpus`, an index, or several indices and UUIDs; None
chooses as without it.
"""


class GpusError(ValueError):
    """Invalid value of `--gpus`; the message names the cause and the valid values."""


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """GPU that `nvidia-smi -L` lists in this namespace."""

    index: int
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """GPUs in the form of the run API: None is the whole node, empty are the GPUs that the run's
    processes use.
    """

    gpus: tuple[str, ...] | None
    is_explicit: bool = False
    """True if given with `--gpus`: an unknown GPU is then an error. Values of the environment are
    only hints.
    """
    warning: str | None = None
    """Reason why a hint of the environment was ignored."""

    def field(self) -> dict[str, list[str]]:
        return {} if self.gpus is None else {"gpus": list(self.gpus)}


def option_text(gpus: GpusOfRun) -> str | None:
    """Return GPUs in the form of `--gpus`: `[0, 1]` is `0,1`. Whether they are GPUs is checked by
    `choose_gpus`.
    """
    if gpus is None or isinstance(gpus, str):
        return gpus
    return ",".join(map(str, gpus)) if isinstance(gpus, Iterable) else str(gpus)


def list_visible_gpus() -> tuple[VisibleGpu, ...]:
    """Return the GPUs that nvidia-smi lists; empty if it is missing or fails."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            text=True,
            timeout=SMI_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(
        VisibleGpu(int(index), name, uuid) for index, name, uuid in _LISTED.findall(done.stdout)
    )


def choose_gpus(
    option: str | None,
    environ: Mapping[str, str],
    list_gpus: Callable[[], tuple[VisibleGpu, ...]] = list_visible_gpus,
) -> GpuChoice:
    """Choose GPUs by `--gpus`, else CUDA_VISIBLE_DEVICES, else NVIDIA_VISIBLE_DEVICES, else those
    that the job uses.
    """
    if option is not None:
        return _from_option(option, list_gpus)
    if "CUDA_VISIBLE_DEVICES" in environ:
        return _from_cuda(environ, list_gpus)
    return _from_container(environ.get("NVIDIA_VISIBLE_DEVICES", ""), list_gpus)


def _from_option(option: str, list_gpus: Callable[[], tuple[VisibleGpu, ...]]) -> GpuChoice:
    if option == "all":
        return GpuChoice(None, is_explicit=True)
    entries = option.split(",")
    wrong = next((entry for entry in entries if not _ENTRY.fullmatch(entry)), None)
    if wrong is not None:
        raise GpusError(
            f"--gpus {option}: {wrong!r} is not a GPU; use indices (0,1), UUIDs (GPU-8f2c…) or all"
        )
    return GpuChoice(_by_uuid(entries, list_gpus()), is_explicit=True)


def _from_cuda(
    environ: Mapping[str, str], list_gpus: Callable[[], tuple[VisibleGpu, ...]]
) -> GpuChoice:
    entries = _visible(environ["CUDA_VISIBLE_DEVICES"])
    numbered = any(entry.isdecimal() for entry in entries)
    here = list_gpus() if entries else ()
    if (
        numbered
        and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID"
        and len({gpu.name for gpu in here}) > 1
    ):
        # CUDA orders GPUs by speed, NVML by bus: index 0 may be a different GPU.
        return GpuChoice(
            (),
            warning=f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} is ambiguous, since "
            "the GPUs differ: "
            "measuring the GPUs that the job uses; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the "
            "GPUs with --gpus 0, "
            'in Python with wattline.run(gpus="0")',
        )
    host = _visible(environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    if (
        numbered
        and not here
        and all(not entry.isdecimal() or int(entry) < len(host) for entry in entries)
    ):
        return GpuChoice(
            tuple(host[int(entry)] if entry.isdecimal() else entry for entry in entries)
        )
    return GpuChoice(_by_uuid(entries, here))


def _from_container(visible: str, list_gpus: Callable[[], tuple[VisibleGpu, ...]]) -> GpuChoice:
    """Resolve NVIDIA_VISIBLE_DEVICES, which has indices of the host.

    `all` is the default of NVIDIA's images and therefore no hint about the job.
    """
    entries = _visible(visible)
    if not entries:
        return GpuChoice(())
    here = list_gpus()
    if len(here) == len(entries) and all(entry.isdecimal() for entry in entries):
        return GpuChoice(tuple(gpu.uuid for gpu in here))
    return GpuChoice(_by_uuid(entries, here))


def _visible(text: str) -> list[str]:
    """Return the entries before the first invalid one, as CUDA does: `0,-1,1` is GPU 0."""
    entries = []
    for entry in (part.strip() for part in text.split(",")):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return entries


def _by_uuid(entries: list[str], here: tuple[VisibleGpu, ...]) -> tuple[str, ...]:
    """Replace indices and abbreviated UUIDs by UUIDs; the exporter resolves entries that are
    unknown here.
    """
    by_index = {str(gpu.index): gpu.uuid for gpu in here}

    def resolve_entry(entry: str) -> str:
        if entry in by_index:
            return by_index[entry]
        matches = [gpu.uuid for gpu in here if gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else entry

    return tuple(dict.fromkeys(map(resolve_entry, entries)))
