"""Which GPUs a run has, named so that the exporter finds the same ones: by UUID wherever this namespace can tell them.

Inside a container or a job's cgroup, index 0 is another GPU than the exporter's index 0; `nvidia-smi -L`, run here,
shows the UUIDs as they are seen here.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

_ENTRY = re.compile(r"\d+|(GPU|MIG)-[0-9A-Za-z/-]+")
_LISTED = re.compile(r"^GPU (\d+): (.+?) \(UUID: (GPU-[^)]+)\)", re.MULTILINE)
_SMI_TIMEOUT_S = 20  # without persistence mode each call initialises every GPU


class GpusError(ValueError):
    """`--gpus` cannot be understood; the text says why and what to give."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A GPU as `nvidia-smi -L` shows it here."""

    index: int
    name: str
    uuid: str


@dataclass(frozen=True, slots=True)
class Choice:
    """`gpus` as the run API takes them: None is the whole node, an empty list those on which the processes are seen."""

    gpus: tuple[str, ...] | None
    asked: bool = False
    """By `--gpus`, so that what the exporter does not know is an error; else it is a hint of the environment."""
    doubt: str | None = None
    """Why a hint of the environment was not taken."""

    def field(self) -> dict[str, list[str]]:
        return {} if self.gpus is None else {"gpus": list(self.gpus)}


def listed() -> tuple[Listed, ...]:
    """Nothing where there is no nvidia-smi, or it fails."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(Listed(int(index), name, uuid) for index, name, uuid in _LISTED.findall(done.stdout))


def choose(
    option: str | None, environ: Mapping[str, str], list_gpus: Callable[[], tuple[Listed, ...]] = listed
) -> Choice:
    """`--gpus`, else CUDA_VISIBLE_DEVICES, else NVIDIA_VISIBLE_DEVICES, else those on which the job is seen."""
    if option is not None:
        return _asked(option, list_gpus)
    if "CUDA_VISIBLE_DEVICES" in environ:
        return _of_cuda(environ, list_gpus)
    return _of_container(environ.get("NVIDIA_VISIBLE_DEVICES", ""), list_gpus)


def _asked(option: str, list_gpus: Callable[[], tuple[Listed, ...]]) -> Choice:
    if option == "all":
        return Choice(None, asked=True)
    entries = option.split(",")
    wrong = next((entry for entry in entries if not _ENTRY.fullmatch(entry)), None)
    if wrong is not None:
        raise GpusError(f"--gpus {option}: {wrong!r} is no GPU; give indices like 0,1, UUIDs like GPU-8f2c…, or all")
    return Choice(_by_uuid(entries, list_gpus()), asked=True)


def _of_cuda(environ: Mapping[str, str], list_gpus: Callable[[], tuple[Listed, ...]]) -> Choice:
    entries = _visible(environ["CUDA_VISIBLE_DEVICES"])
    numbered = any(entry.isdecimal() for entry in entries)
    here = list_gpus() if entries else ()
    if numbered and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID" and len({gpu.name for gpu in here}) > 1:
        # CUDA's own order is fastest first, NVML's is by bus: 0 may be another card.
        return Choice(
            (),
            doubt=f"CUDA_VISIBLE_DEVICES={environ['CUDA_VISIBLE_DEVICES']} is ambiguous where GPUs differ: measuring "
            "those on which the job is seen; set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs with --gpus",
        )
    host = _visible(environ.get("NVIDIA_VISIBLE_DEVICES", ""))
    if numbered and not here and all(not entry.isdecimal() or int(entry) < len(host) for entry in entries):
        return Choice(tuple(host[int(entry)] if entry.isdecimal() else entry for entry in entries))
    return Choice(_by_uuid(entries, here))


def _of_container(visible: str, list_gpus: Callable[[], tuple[Listed, ...]]) -> Choice:
    """NVIDIA_VISIBLE_DEVICES counts the host's GPUs, so in a container it is all that can be seen there.

    `all` is what NVIDIA's images say by default, and says nothing about the job.
    """
    entries = _visible(visible)
    if not entries:
        return Choice(())
    here = list_gpus()
    if len(here) == len(entries) and all(entry.isdecimal() for entry in entries):
        return Choice(tuple(gpu.uuid for gpu in here))
    return Choice(_by_uuid(entries, here))


def _visible(text: str) -> list[str]:
    """CUDA takes the entries before the first that is invalid: `0,-1,1` is GPU 0."""
    entries = []
    for entry in (part.strip() for part in text.split(",")):
        if not _ENTRY.fullmatch(entry):
            break
        entries.append(entry)
    return entries


def _by_uuid(entries: list[str], here: tuple[Listed, ...]) -> tuple[str, ...]:
    """What cannot be resolved here stays as it is, for the exporter to resolve; UUIDs may be abbreviated."""
    by_index = {str(gpu.index): gpu.uuid for gpu in here}

    def resolved(entry: str) -> str:
        if entry in by_index:
            return by_index[entry]
        matches = [gpu.uuid for gpu in here if gpu.uuid.startswith(entry)]
        return matches[0] if len(matches) == 1 else entry

    return tuple(dict.fromkeys(map(resolved, entries)))
