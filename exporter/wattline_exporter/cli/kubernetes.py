"""Sources of pods and of their GPUs, from the settings."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping

from wattline.command_line import install
from wattline.contract.identity import OwnerKind
from wattline_exporter.config.settings import Settings
from wattline_exporter.config.values import OperationError, UsageError, check_url
from wattline_exporter.runs.discovery.pods import PodDirectory
from wattline_exporter.sensors.kubernetes.api_client import (
    CREDENTIALS,
    KubernetesClient,
    api_server_url,
)
from wattline_exporter.sensors.kubernetes.kubelet import KubeletSource
from wattline_exporter.sensors.kubernetes.pod_gpus import PodGpuAssignments
from wattline_exporter.sensors.kubernetes.pods import LOG_FOLDER, Pod, PodLogFolders, pod_reader
from wattline_exporter.sensors.kubernetes.resource_slices import ResourceSlices

NODE = "NODE_NAME"
"""Environment variable with the name of this node."""


def kubelet_source(
    settings: Settings, gpus: Callable[[], Mapping[str, str]] | None
) -> KubeletSource | None:
    """Return the source of the GPUs of pods, None without the kubelet. Raises UsageError and
    OperationError.
    """
    if settings.kubelet_socket is None:
        return None
    try:
        from wattline_exporter.sensors.kubernetes.pod_resources import PodResources
    except ModuleNotFoundError as error:
        raise OperationError(
            f"--kubelet.pod-resources: {error.name} is not installed; {install('kubernetes')}"
        ) from error
    server = _api_server(settings)
    slices = ResourceSlices(_client(settings), server, os.environ.get(NODE)) if server else None
    return KubeletSource(PodGpuAssignments(PodResources(settings.kubelet_socket), gpus, slices))


def pods_of_node(settings: Settings) -> Callable[[], Mapping[str, Pod]]:
    """Return the reader of this node's pods by UID. Raises UsageError."""
    try:
        return pod_reader(
            settings.kubernetes_pods, _client(settings), _api_server(settings), os.environ.get(NODE)
        )
    except ValueError as error:
        raise UsageError(f"--kubernetes.pods: {error}") from error


def pod_names(settings: Settings) -> Callable[[], Mapping[str, Pod]] | None:
    """Return the reader of pods while that of --kubernetes.pods fails; None if the folder of logs
    is not visible.
    """
    return PodLogFolders().read if settings.kubernetes_pods and LOG_FOLDER.exists() else None


def pod_directory(
    settings: Settings, kinds: Collection[OwnerKind], kubelet: KubeletSource | None
) -> PodDirectory | None:
    """Return the pods of this node for their runs, None on a node without Kubernetes. Raises
    UsageError.
    """
    is_node = kubelet is not None or settings.kubernetes_pods is not None or LOG_FOLDER.exists()
    if "kubernetes" not in kinds or not is_node:
        return None
    read_gpus = kubelet.assignments.read if kubelet else None
    return PodDirectory(pods_of_node(settings), read_gpus, read_names=pod_names(settings))


def _client(settings: Settings) -> KubernetesClient:
    return KubernetesClient(settings.kubernetes_credentials or CREDENTIALS)


def _api_server(settings: Settings) -> str | None:
    return check_url(settings.kubernetes_api, "--kubernetes.api") or api_server_url()
