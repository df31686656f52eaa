"""Assembly of the discovery of runs, from the settings."""

from __future__ import annotations

from collections.abc import Sequence

from wattline.contract.identity import OwnerKind
from wattline_exporter.cli.kubernetes import pod_directory
from wattline_exporter.config.settings import Settings
from wattline_exporter.polling.live_state import LiveState
from wattline_exporter.runs.discovery.labels import OwnerLabels
from wattline_exporter.runs.discovery.owners import ProcessOwners
from wattline_exporter.runs.discovery.pods import PodDirectory
from wattline_exporter.runs.discovery.service import DiscoveryService
from wattline_exporter.runs.discovery.slurm import JobMappingFolder
from wattline_exporter.runs.service import RunService
from wattline_exporter.sensors.kubernetes.kubelet import KubeletSource


def discovery_services(
    settings: Settings,
    kinds: Sequence[OwnerKind],
    kubelet: KubeletSource | None,
    live: LiveState,
    runs: RunService,
) -> tuple[list[PodDirectory], DiscoveryService]:
    """Return the pods of this node, empty on a node without Kubernetes, and the discovery of the
    runs of these kinds. Raises UsageError.
    """
    pods = pod_directory(settings, kinds, kubelet)
    find_pod = pods.find if pods else lambda *_: None
    labels = OwnerLabels(settings.discovered_labels(), find_pod=find_pod)
    folder = settings.job_mapping_folder
    jobs = JobMappingFolder(folder) if folder else None
    discovery = DiscoveryService(ProcessOwners(kinds), labels, live, runs, jobs=jobs, pods=pods)
    return [pods] if pods else [], discovery
