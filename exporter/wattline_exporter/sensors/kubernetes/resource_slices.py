"""GPUs by their names in claims of Dynamic Resource Allocation, from the ResourceSlices of NVIDIA's
driver.

https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/resource-slice-v1/
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import quote

from pydantic import BaseModel, Field, ValidationError

from wattline_exporter.sensors.kubernetes.api_client import (
    FROM_CACHE,
    KubernetesClient,
    NotFoundError,
)
from wattline_exporter.sensors.readings import SourceError

DRIVER = "gpu.nvidia.com"
REFRESH_S = 60.0
"""Longest age of the slices while claims are in use: a new layout of MIG instances changes them."""
RETRY_S = 10.0
"""Time between two reads for a device that the slices lack."""
_VERSIONS = ("v1", "v1beta2", "v1beta1")
_REMEDY = (
    "allow the service account to list resourceslices of resource.k8s.io: discovery.enabled "
    "in the Helm chart"
)


class ClaimDevice(NamedTuple):
    """Device of a claim: the driver's pool, usually the node's name, and the device's name in
    it.
    """

    pool: str
    name: str


class _Value(BaseModel):
    string: str | None = None


class _Attributes(BaseModel):
    attributes: dict[str, _Value] = Field(default_factory=dict)


class _Device(_Attributes):
    name: str
    basic: _Attributes | None = None
    """Attributes in v1beta1; later versions have them in the device."""


class _Pool(BaseModel):
    name: str
    generation: int = 0


class _Spec(BaseModel):
    driver: str
    pool: _Pool
    devices: list[_Device] | None = None


class _Slice(BaseModel):
    spec: _Spec


class _SliceList(BaseModel):
    items: list[_Slice] = Field(default_factory=list)


class ResourceSlices:
    """UUIDs of claimed devices. `server`: URL of the API server; `node`: name of this node, None if
    unknown.
    """

    def __init__(
        self,
        client: KubernetesClient,
        server: str,
        node: str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._server = server
        self._node = node
        self._clock = clock
        self._version: str | None = None
        self._uuids: Mapping[ClaimDevice, str] = {}
        self._tried_s = float("-inf")
        self._failure: SourceError | None = None
        self._lock = threading.Lock()

    def uuids(self, devices: set[ClaimDevice]) -> Mapping[ClaimDevice, str]:
        """Return the UUIDs of the devices that are known. Reads the slices if they are old or lack
        a device.

        A MIG instance that lacks a UUID, as before it is created, has the UUID of its GPU. Raises
        SourceError if the slices cannot be read and a device is unknown.
        """
        with self._lock:
            age_s = self._clock() - self._tried_s
            if age_s > REFRESH_S or (age_s > RETRY_S and not devices <= self._uuids.keys()):
                self._refresh()
            if self._failure and not devices <= self._uuids.keys():
                raise self._failure
            return {device: self._uuids[device] for device in devices if device in self._uuids}

    def _refresh(self) -> None:
        self._tried_s = self._clock()
        try:
            self._uuids = _uuids(self._list())
            self._failure = None
        except SourceError as error:
            self._failure = error

    def _list(self) -> list[_Spec]:
        """Return the slices by the newest version of the API that the server has."""
        versions = (self._version,) if self._version else _VERSIONS
        for version in versions:
            try:
                body = self._client.get(self._url(version), _REMEDY)
            except NotFoundError:
                self._version = None  # an upgrade of the cluster removed it
                continue
            try:
                found = _SliceList.model_validate_json(body)
            except ValidationError as error:
                raise SourceError(
                    f"cannot parse {self._url(version)}: no ResourceSliceList", _REMEDY
                ) from error
            self._version = version
            return [item.spec for item in found.items if item.spec.driver == DRIVER]
        raise SourceError(
            f"cannot read ResourceSlices from {self._server}: it serves none of "
            f"{', '.join(_VERSIONS)}",
            "enable the API group resource.k8s.io",
        )

    def _url(self, version: str) -> str:
        selector = f"spec.driver={DRIVER}" + (f",spec.nodeName={self._node}" if self._node else "")
        slices = f"{self._server}/apis/resource.k8s.io/{version}/resourceslices"
        return f"{slices}?fieldSelector={quote(selector)}{FROM_CACHE}"


def _uuids(slices: list[_Spec]) -> dict[ClaimDevice, str]:
    """Return the UUIDs by device, from the newest generation of each pool."""
    newest: dict[str, int] = {}
    for spec in slices:
        newest[spec.pool.name] = max(newest.get(spec.pool.name, 0), spec.pool.generation)
    found: dict[ClaimDevice, str] = {}
    for spec in slices:
        for device in (
            (spec.devices or []) if spec.pool.generation == newest[spec.pool.name] else []
        ):
            attributes = (device.basic or device).attributes
            named = {
                name.removeprefix(f"{DRIVER}/"): value.string for name, value in attributes.items()
            }
            uuid = named.get("uuid") or named.get("parentUUID")
            if uuid:
                found[ClaimDevice(spec.pool.name, device.name)] = uuid
    return found
