"""Helm chart, rendered by helm."""

from __future__ import annotations

import json
import subprocess
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.machine import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "wattline-exporter"
HELM = Path(sys.executable).with_name("helm")
IMAGE = "image.repository=registry.example.org/wattline-exporter"


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HELM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def template(*values: str, namespace: str = "wattline") -> list[dict[str, Any]]:
    sets = [part for value in (IMAGE, *values) for part in ("--set", value)]
    completed = helm("template", "wattline", CHART, "--namespace", namespace, *sets)
    assert completed.returncode == 0, completed.stderr
    return [document for document in yaml.safe_load_all(completed.stdout) if document]


def object_named(
    objects: list[dict[str, Any]], kind: str, name: str = "wattline-exporter"
) -> dict[str, Any]:
    (one,) = [d for d in objects if d["kind"] == kind and d["metadata"]["name"] == name]
    return one


def without_release(document: dict[str, Any]) -> dict[str, Any]:
    """Return the object without labels, image and the order of volumes, which may differ."""
    document = json.loads(json.dumps(document))
    document["metadata"].pop("labels", None)
    if document["kind"] == "DaemonSet":
        spec = document["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        for mounted in (spec["volumes"], container["volumeMounts"]):
            mounted.sort(key=itemgetter("name"))
        assert container.pop("image").endswith("wattline-exporter:0.1.0")
        assert container.pop("imagePullPolicy", "IfNotPresent") == "IfNotPresent"
    return document


def by_kind(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    kinds = {document["kind"]: without_release(document) for document in objects}
    assert len(kinds) == len(objects)
    return kinds
