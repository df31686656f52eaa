"""Pods of this node: names, owners, labels and container statuses, by UID."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from wattline_exporter.sensors.kubernetes.api_client import FROM_CACHE, KubernetesClient
from wattline_exporter.sensors.readings import SourceError

LOG_FOLDER = Path("/var/log/pods")
"""Folder of the kubelet with a folder NAMESPACE_NAME_UID for each pod."""
_LOG_FOLDER_NAME = re.compile(r"(?P<namespace>[^_]+)_(?P<name>[^_]+)_(?P<uid>[0-9a-f-]{32,36})")
SIGTERM_CODES = (130, 143)
"""Exit codes of containers that SIGINT or SIGTERM ended."""
_KILLED_CODES = (*SIGTERM_CODES, 137)
"""The same with SIGKILL, which follows SIGTERM."""
_INTERRUPTIONS = ("Evicted", "NodeShutdown", "Terminated", "Preempting", "NodeLost")
_OOM = "OOMKilled"
_REMEDY = "allow the service account to read pods: discovery.pods in the Helm chart"

PodOutcome = Literal["ok", "failed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `containers`: the state of each, an exit code, or None while it has not ended.

    `reasons`: the container runtime's reason of each exit, such as OOMKilled. `ended_at`: Unix time
    of each exit, in whole seconds from Kubernetes.
    """

    namespace: str
    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    owner_kind: str = ""
    owner_name: str = ""
    containers: Mapping[str, int | None] = field(default_factory=dict)
    is_interrupted: bool = False
    """True if the pod was evicted, preempted or deleted."""
    reasons: Mapping[str, str] = field(default_factory=dict)
    ended_at: Mapping[str, float] = field(default_factory=dict)

    def exit_codes(self, of: frozenset[str] = frozenset()) -> dict[str, int | None]:
        """Return the exit codes of these containers, of all if none is named."""
        return {
            name: code
            for name, code in self.containers.items()
            if name in of or not of & self.containers.keys()
        }

    def last_end_at(self, of: frozenset[str] = frozenset()) -> float | None:
        """Return the Unix time at which the last of these containers ended; None if it is
        unknown.
        """
        return max(
            (self.ended_at[name] for name in self.exit_codes(of) if name in self.ended_at),
            default=None,
        )

    def failures(self, of: frozenset[str] = frozenset()) -> str:
        """Return a text that names these containers with an exit code other than 0, empty for
        none.
        """
        codes = self.exit_codes(of).items()
        return "; ".join(
            self.failure(name, code, is_oom=self.is_oom(name)) for name, code in codes if code
        )

    @staticmethod
    def failure(name: str, code: int, *, is_oom: bool) -> str:
        """Return a text about the exit code of a container; `name` is empty for the only one."""
        return f"{f'container {name}' if name else 'the container'} ended with exit code {code}" + (
            ": out of memory" if is_oom else ""
        )

    def is_oom(self, name: str) -> bool:
        """Return True if the container was killed since it exceeded its memory."""
        return self.reasons.get(name) == _OOM

    def outcome(self, of: frozenset[str] = frozenset()) -> PodOutcome | None:
        """Return the outcome of these containers, of all if none is named; None while one of them
        has no exit code.
        """
        codes = list(self.exit_codes(of).values())
        if not codes or any(code is None for code in codes):
            return None
        failed = [code for code in codes if code]
        if not failed:
            return "ok"
        if self.is_interrupted and all(code in _KILLED_CODES for code in failed):
            return "interrupted"
        return "failed"


class _Object(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)


class _Owner(_Object):
    kind: str
    name: str
    controller: bool = False


class _Metadata(_Object):
    uid: str
    name: str
    namespace: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    deletion_timestamp: str | None = None


class _Terminated(_Object):
    exit_code: int
    reason: str = ""
    finished_at: AwareDatetime | None = None


class _State(_Object):
    terminated: _Terminated | None = None
    running: dict[str, object] | None = None


class _Container(_Object):
    name: str
    state: _State = Field(default_factory=_State)
    last_state: _State = Field(default_factory=_State)


class _Status(_Object):
    reason: str = ""
    container_statuses: list[_Container] | None = None


class _Item(_Object):
    metadata: _Metadata
    status: _Status = Field(default_factory=_Status)


class _PodList(_Object):
    kind: Literal["PodList"]
    items: list[_Item] | None = None


def parse_pods(body: bytes) -> dict[str, Pod]:
    """Return the pods of a PodList by UID as cgroups have it. Raises pydantic.ValidationError."""
    items = _PodList.model_validate_json(body).items or []
    mirrors = {uid: _pod(item) for item in items if (uid := _static_uid(item.metadata))}
    others = {item.metadata.uid: _pod(item) for item in items if not _static_uid(item.metadata)}
    return mirrors | others  # the users of a cluster can write annotations, but no UIDs


def _static_uid(metadata: _Metadata) -> str:
    """Return the kubelet's UID of a static pod for its mirror in the API server; of other pods an
    empty text.
    """
    annotations = metadata.annotations or {}
    return (
        annotations.get("kubernetes.io/config.hash", "")
        if "kubernetes.io/config.mirror" in annotations
        else ""
    )


def _pod(item: _Item) -> Pod:
    metadata = item.metadata
    status = item.status
    labels = metadata.labels or {}
    owner = next((owner for owner in metadata.owner_references or [] if owner.controller), None)
    kind, name = (owner.kind, owner.name) if owner else ("", "")
    suffix = "-" + labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        kind = "Deployment"
        name = name.removesuffix(suffix)
    ends = {container.name: _end(container) for container in status.container_statuses or []}
    return Pod(
        metadata.namespace,
        metadata.name,
        labels,
        metadata.annotations or {},
        kind,
        name,
        {name: ended.exit_code if ended else None for name, ended in ends.items()},
        metadata.deletion_timestamp is not None or status.reason in _INTERRUPTIONS,
        {name: ended.reason for name, ended in ends.items() if ended},
        {
            name: ended.finished_at.timestamp()
            for name, ended in ends.items()
            if ended and ended.finished_at
        },
    )


def _end(container: _Container) -> _Terminated | None:
    """Return the end of the last process, None while one runs; of a container that waits for its
    restart as well.
    """
    if container.state.running is not None:
        return None
    return container.state.terminated or container.last_state.terminated


class PodList:
    """Pods from the kubelet's /pods or the API server."""

    def __init__(self, client: KubernetesClient, url: str) -> None:
        self._client = client
        self._url = url

    def read(self) -> dict[str, Pod]:
        """Return the pods by UID. Raises SourceError."""
        try:
            return parse_pods(self._client.get(self._url, _REMEDY))
        except ValidationError as error:
            raise SourceError(
                f"cannot parse {self._url}: no PodList of Kubernetes", "check --kubernetes.pods"
            ) from error


class PodLogFolders:
    """Names of pods from the folders of their logs, without labels and statuses."""

    def __init__(self, folder: Path = LOG_FOLDER) -> None:
        self._folder = folder

    def read(self) -> dict[str, Pod]:
        """Return the pods by UID. Raises SourceError."""
        try:
            names = [path.name for path in self._folder.iterdir()]
        except OSError as error:
            raise SourceError(
                f"cannot read {self._folder}: {error.strerror}",
                "mount the host's folder there, or set --kubernetes.pods",
            ) from error
        matches = filter(None, map(_LOG_FOLDER_NAME.fullmatch, names))
        return {match["uid"]: Pod(match["namespace"], match["name"]) for match in matches}


def pod_reader(
    source: str | None, client: KubernetesClient, server: str | None, node: str | None
) -> Callable[[], dict[str, Pod]]:
    """Return the reader of `--kubernetes.pods`: `api`, the URL of a PodList, or a folder of logs.
    Raises ValueError.
    """
    if source == "api":
        if not server or not node:
            raise ValueError(
                "needs a pod's environment with NODE_NAME, or --kubernetes.api and NODE_NAME"
            )
        return PodList(
            client,
            f"{server}/api/v1/pods?fieldSelector={quote(f'spec.nodeName={node}')}{FROM_CACHE}",
        ).read
    if source and source.startswith(("https://", "http://")):
        return PodList(client, source).read
    return PodLogFolders(Path(source) if source else LOG_FOLDER).read
