"""Specification of a container, and its requests to Docker and Podman."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LABEL = "wattline.run_id"
_SIZE = re.compile(r"(\d+)([kmgt]?)i?b?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Volume:
    """Mount; `source` is a path of the host or the name of an engine volume."""

    source: str
    target: str
    read_only: bool = False

    @property
    def kind(self) -> str:
        return "bind" if self.source.startswith("/") else "volume"


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    image: str
    arguments: tuple[str, ...] = ()
    entrypoint: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    shm_bytes: int | None = None
    network: str | None = None
    name: str | None = None
    workdir: str | None = None
    gpus: tuple[str, ...] | None = ()
    """GPUs by index or UUID; None means all."""
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        """Variables; without GPUs they override the CUDA images' request for all GPUs."""
        return {"NVIDIA_VISIBLE_DEVICES": "void", **self.env} if self.gpus == () else dict(self.env)


def docker_body(container: ContainerSpec) -> dict[str, Any]:
    """Return the body of `POST /containers/create`."""
    host = {
        "ShmSize": container.shm_bytes,
        "NetworkMode": container.network,
        "Mounts": [
            {
                "Type": volume.kind,
                "Source": volume.source,
                "Target": volume.target,
                "ReadOnly": volume.read_only,
            }
            for volume in container.volumes
        ],
        "DeviceRequests": _device_requests(container.gpus),
    }
    return _without_empty(
        {
            "Image": container.image,
            "Cmd": list(container.arguments),
            "Entrypoint": None if container.entrypoint is None else [container.entrypoint],
            "Env": [f"{name}={value}" for name, value in container.environment.items()],
            "WorkingDir": container.workdir,
            "Labels": dict(container.labels),
            "HostConfig": _without_empty(host),
        }
    )


def _device_requests(gpus: tuple[str, ...] | None) -> list[dict[str, Any]]:
    if gpus == ():
        return []
    selection = {"Count": -1} if gpus is None else {"DeviceIDs": list(gpus)}
    return [{"Driver": "", "Capabilities": [["gpu"]], **selection}]


def podman_body(container: ContainerSpec) -> dict[str, Any]:
    """Return the body of `POST /libpod/containers/create`; Podman's Docker API ignores GPUs
    silently.
    """
    gpus = ("all",) if container.gpus is None else container.gpus
    return _without_empty(
        {
            "image": container.image,
            "command": list(container.arguments),
            "entrypoint": None if container.entrypoint is None else [container.entrypoint],
            "env": container.environment,
            "work_dir": container.workdir,
            "labels": dict(container.labels),
            "name": container.name,
            "shm_size": container.shm_bytes,
            "mounts": [
                {
                    "type": "bind",
                    "source": volume.source,
                    "destination": volume.target,
                    "options": ["rbind", *_mode(volume)],
                }
                for volume in container.volumes
                if volume.kind == "bind"
            ],
            "volumes": [
                {"Name": volume.source, "Dest": volume.target, "Options": _mode(volume)}
                for volume in container.volumes
                if volume.kind == "volume"
            ],
            "devices": [{"path": f"nvidia.com/gpu={gpu}"} for gpu in gpus],
            **_podman_network(container.network),
        }
    )


def _mode(volume: Volume) -> list[str]:
    return ["ro"] if volume.read_only else ["rw"]


def _podman_network(network: str | None) -> dict[str, Any]:
    if network is None:
        return {}
    kind, _, name = network.partition(":")
    if kind == "container":
        return {"netns": {"nsmode": "container", "value": name}}
    if network in {"host", "none", "bridge", "private"}:
        return {"netns": {"nsmode": network}}
    return {"netns": {"nsmode": "bridge"}, "networks": {network: {}}}


def _without_empty(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if value not in (None, [], {})}


def check_variable(text: str) -> str:
    """Check `NAME=VALUE` or `NAME`, whose value is read later since it may be a secret."""
    name, has_value, _ = text.partition("=")
    if not name or (not has_value and name not in os.environ):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not set; give NAME=VALUE, or the NAME of a set variable"
        )
    return text


def resolve_environment(variables: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with their values."""
    parts = [variable.partition("=") for variable in variables]
    return {name: value if has_value else environ[name] for name, has_value, value in parts}


def parse_volume(text: str) -> Volume:
    """Parse `SOURCE:TARGET[:ro]`; a source with a slash or a leading dot is a path of the host."""
    source, target, *modes = [*text.split(":"), ""] if ":" not in text else text.split(":")
    if not source or not target.startswith("/") or modes not in ([], ["ro"], ["rw"]):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a volume; give SOURCE:/TARGET or SOURCE:/TARGET:ro"
        )
    is_path = "/" in source or source.startswith(("~", "."))
    return Volume(
        str(Path(source).expanduser().absolute()) if is_path else source, target, modes == ["ro"]
    )


def parse_engine_size(text: str) -> int:
    """Parse a 1024-based size: 64g is 64 GiB."""
    match = _SIZE.fullmatch(text)
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size; give bytes, or a size like 512m or 64g"
        )
    return int(match[1]) << 10 * _POWERS[match[2].lower()]
