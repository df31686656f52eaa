"""Options of Kubernetes: the kubelet's socket, and the servers that name pods and the GPUs of
claims.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

KubeletSocketOption = Annotated[
    Path | None,
    typer.Option(
        "--kubelet.pod-resources",
        help="Socket of the kubelet, which names the pods of GPUs: "
        "/var/lib/kubelet/pod-resources/kubelet.sock.",
        metavar="SOCKET",
    ),
]
PodsOption = Annotated[
    str | None,
    typer.Option(
        "--kubernetes.pods",
        help="Source of the pods' names, labels and exit codes: api, the kubelet's URL "
        "https://NODE:10250/pods, or a "
        "folder of logs (names only).",
        metavar="api|URL|FOLDER",
        show_default="/var/log/pods",
    ),
]
ApiOption = Annotated[
    str | None,
    typer.Option(
        "--kubernetes.api",
        help="API server, for ResourceSlices and --kubernetes.pods=api; default: that of the pod's "
        "environment.",
        metavar="URL",
    ),
]
CredentialsOption = Annotated[
    Path | None,
    typer.Option(
        "--kubernetes.credentials",
        help="Folder with token and ca.crt of a service account.",
        metavar="FOLDER",
        show_default="/var/run/secrets/kubernetes.io/serviceaccount",
    ),
]
