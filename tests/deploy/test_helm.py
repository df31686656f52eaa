"""Helm chart: the overlays' objects, with values checked by a schema."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from tests.deploy.helm import CHART, IMAGE, by_kind, helm, object_named, template, without_release
from tests.deploy.machine import REPOSITORY
from tests.deploy.test_kubernetes import LEVELS, VERSIONS, documents

OF_THE_RELEASE = {
    "app.kubernetes.io/instance": "wattline",
    "app.kubernetes.io/version": "0.1.0",
    "app.kubernetes.io/managed-by": "Helm",
    "helm.sh/chart": "wattline-exporter-0.1.0",
}
ALL = (
    "podMonitor.enabled=true",
    "vmPodScrape.enabled=true",
    "rules.kind=PrometheusRule",
    "dashboards.enabled=true",
)


@pytest.mark.parametrize("mode", LEVELS)
def test_chart_mode_renders_the_objects_of_its_overlay(mode: str) -> None:
    assert by_kind(template(f"mode={mode}")) == by_kind(documents(mode))


@pytest.mark.parametrize("mode", LEVELS)
def test_manifests_set_the_name_of_the_node_without_discovery(mode: str) -> None:
    for objects in (template(f"mode={mode}"), documents(mode)):
        (container,) = object_named(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
        names = [variable for variable in container["env"] if variable["name"] == "NODE_NAME"]
        assert names == [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        ]


@pytest.mark.parametrize(
    ("component", "value", "kind"),
    [
        ("prometheus-operator/podmonitor.yaml", "podMonitor.enabled=true", "PodMonitor"),
        ("victoriametrics-operator/vmpodscrape.yaml", "vmPodScrape.enabled=true", "VMPodScrape"),
    ],
)
def test_chart_monitor_equals_the_component(component: str, value: str, kind: str) -> None:
    theirs = yaml.safe_load(
        (REPOSITORY / "deploy" / "kubernetes" / "components" / component).read_text()
    )
    assert without_release(object_named(template(value), kind)) == without_release(theirs)


def test_chart_objects_have_the_release_labels() -> None:
    objects = template("mode=rapl", *ALL)
    assert len(objects) == 5 + 2 + 2 + 11
    for document in objects:
        assert OF_THE_RELEASE.items() <= document["metadata"]["labels"].items()


@pytest.mark.parametrize("version", VERSIONS)
def test_chart_with_all_values_renders_valid_objects(version: str) -> None:
    values = (
        "mode=rapl",
        "imagePullSecrets[0].name=registry",
        "extraEnv[0].name=POD_NAME,extraEnv[0].valueFrom.fieldRef.fieldPath=metadata.name",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight=1",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].key=a",
        "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].preference.matchExpressions[0].operator=Exists",
        "podAnnotations.a=b",
        "networkPolicy.extraEgress[0].ports[0].port=8428",
        "dashboards.enabled=true",
    )
    objects = template(*values)
    assert {"ConfigMap", "DaemonSet", "NetworkPolicy", "PriorityClass", "Service"} <= {
        d["kind"] for d in objects
    }
    for document in objects:
        kubernetes_validate.validate(document, version, strict=True)
    assert {"ports": [{"port": 8428}]} in object_named(objects, "NetworkPolicy")["spec"]["egress"]


def test_chart_passes_options_and_namespace_to_the_exporter() -> None:
    objects = template(
        "mode=runs",
        "clusterDomain=k8s.example.org",
        "extraArgs={--carbon.provider=gb}",
        namespace="power",
    )
    arguments = object_named(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][0][
        "args"
    ]
    hosts = [
        "wattline-runs",
        "wattline-runs.power",
        "wattline-runs.power.svc",
        "wattline-runs.power.svc.k8s.example.org",
    ]
    assert [a.partition("=")[2] for a in arguments if a.startswith("--web.allowed-host=")] == hosts
    assert arguments[-1] == "--carbon.provider=gb"
    assert {document["metadata"].get("namespace", "power") for document in objects} == {"power"}


def test_chart_omits_disabled_objects() -> None:
    off = (
        "runtimeClassName=",
        "priorityClass.create=false",
        "priorityClass.name=",
        "networkPolicy.enabled=false",
    )
    objects = template(*off, "tolerations=null", "nodeSelector.nvidia\\.com/gpu\\.present=null")
    spec = object_named(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert not {"runtimeClassName", "priorityClassName", "tolerations", "nodeSelector"} & set(spec)
    assert {document["kind"] for document in objects} == {"DaemonSet", "ServiceAccount"}


def test_chart_image_uses_the_digest_if_given() -> None:
    digest = "sha256:" + "0f" * 32
    spec = object_named(template(f"image.digest={digest}"), "DaemonSet")["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == f"registry.example.org/wattline-exporter@{digest}"


@pytest.mark.parametrize("kind", ["PrometheusRule", "VMRule"])
def test_chart_rules_and_alerts_equal_the_tested_files(kind: str) -> None:
    objects = template(f"rules.kind={kind}", "rules.labels.release=monitoring")
    for name in ("rules", "alerts"):
        rule = object_named(objects, kind, f"wattline-{name}")
        theirs = yaml.safe_load(
            (REPOSITORY / "deploy" / "prometheus" / f"wattline.{name}.yml").read_text()
        )
        assert rule["spec"] == theirs
        assert rule["metadata"]["labels"]["release"] == "monitoring"


def test_chart_alerts_disabled_by_name_are_left_out() -> None:
    before = object_named(
        template("rules.kind=PrometheusRule"), "PrometheusRule", "wattline-alerts"
    )
    after = object_named(
        template(
            "rules.kind=PrometheusRule", "rules.disabledAlerts={WattlineExporterGone,WattlineXid}"
        ),
        "PrometheusRule",
        "wattline-alerts",
    )
    alerts = [
        [rule["alert"] for rule in rules["spec"]["groups"][0]["rules"]] for rules in (before, after)
    ]
    assert set(alerts[0]) - set(alerts[1]) == {"WattlineExporterGone", "WattlineXid"}
    assert len(alerts[0]) - len(alerts[1]) == 2


def test_chart_alerts_link_to_the_given_addresses() -> None:
    addresses = (
        "rules.grafanaUrl=https://grafana.example.org",
        "rules.runbookUrl=https://git.example.org/main/",
    )
    alerts = object_named(template("rules.kind=VMRule", *addresses), "VMRule", "wattline-alerts")
    for rule in alerts["spec"]["groups"][0]["rules"]:
        assert rule["annotations"]["dashboard_url"].startswith(
            "https://grafana.example.org/d/wattline-"
        )
        assert rule["annotations"]["runbook_url"].startswith(
            "https://git.example.org/main/deploy/prometheus/runbook.md#"
        )


@pytest.mark.parametrize(
    ("file", "value"),
    [
        ("wattline.rules.yml", "rules.kind=PrometheusRule"),
        ("wattline.alerts.yml", "rules.kind=VMRule"),
        ("dashboards", "dashboards.enabled=true"),
    ],
)
def test_chart_without_its_linked_files_is_refused(tmp_path: Path, file: str, value: str) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart", symlinks=True)
    shutil.rmtree(chart / "files")
    shutil.copytree(CHART / "files", chart / "files", ignore=shutil.ignore_patterns(file))
    completed = helm("template", "wattline", chart, "--set", IMAGE, "--set", value)
    assert completed.returncode != 0
    assert f"files/{file} is missing or empty" in completed.stderr


def test_chart_adds_volumes_labels_contexts_and_strategy() -> None:
    objects = template(
        "mode=runs",
        "commonLabels.team=hpc,podLabels.tier=node,podAnnotations.note=yes",
        "extraVolumes[0].name=push,extraVolumes[0].secret.secretName=push",
        "extraVolumeMounts[0].name=push,extraVolumeMounts[0].mountPath=/etc/push",
        "podSecurityContext.supplementalGroups={44},securityContext.readOnlyRootFilesystem=false",
        "updateStrategy.type=OnDelete,updateStrategy.rollingUpdate=null",
    )
    assert {document["metadata"]["labels"]["team"] for document in objects} == {"hpc"}
    daemon = object_named(objects, "DaemonSet")
    kubernetes_validate.validate(daemon, VERSIONS[0], strict=True)
    assert daemon["spec"]["updateStrategy"] == {"type": "OnDelete"}
    metadata, spec = daemon["spec"]["template"]["metadata"], daemon["spec"]["template"]["spec"]
    assert metadata == {
        "labels": {"app.kubernetes.io/name": "wattline-exporter", "tier": "node"},
        "annotations": {"note": "yes"},
    }
    assert {"name": "push", "secret": {"secretName": "push"}} in spec["volumes"]
    assert {"name": "push", "mountPath": "/etc/push"} in spec["containers"][0]["volumeMounts"]
    assert spec["securityContext"]["supplementalGroups"] == [44]
    assert spec["securityContext"]["runAsUser"] == 0
    assert spec["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is False
    assert spec["containers"][0]["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(
    ("name", "kind", "keys"),
    [
        ("podMonitor", "PodMonitor", ("scrapeTimeout", "relabelings", "metricRelabelings")),
        ("vmPodScrape", "VMPodScrape", ("scrapeTimeout", "relabelConfigs", "metricRelabelConfigs")),
    ],
)
def test_chart_monitor_has_its_options(name: str, kind: str, keys: tuple[str, ...]) -> None:
    options = (
        "enabled=true",
        "scrapeTimeout=9s",
        "relabelings[0].targetLabel=cluster",
        "metricRelabelings[0].action=drop",
    )
    (endpoint,) = object_named(template(*(f"{name}.{option}" for option in options)), kind)["spec"][
        "podMetricsEndpoints"
    ]
    timeout, relabelings, metric_relabelings = (endpoint[key] for key in keys)
    assert timeout == "9s"
    assert relabelings[0]["targetLabel"] == "instance"
    assert relabelings[-1] == {"targetLabel": "cluster"}
    assert metric_relabelings == [{"action": "drop"}]


def test_chart_dashboards_equal_the_repository() -> None:
    maps = {
        d["metadata"]["name"]: d
        for d in template("dashboards.enabled=true")
        if d["kind"] == "ConfigMap"
    }
    files = sorted((REPOSITORY / "grafana" / "dashboards").glob("*.json"))
    assert list(maps) == [file.stem for file in files]
    for file in files:
        assert maps[file.stem]["data"] == {file.name: file.read_text()}
        assert maps[file.stem]["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("mode=everything", "mode"),
        ("image.repository=", "image.repository"),
        ("image.digest=sha256:1", "image.digest"),
        ("extraArgs={carbon.provider=gb}", "extraArgs"),
        ("podmonitor.enabled=true", "podmonitor"),
        ("rules.kind=Rules", "rules.kind"),
        ("rules.kind=VMRule,rules.disabledAlerts={WattlineXids}", "no alert is named WattlineXids"),
        ("rules.grafanaUrl=grafana.example.org", "rules.grafanaUrl"),
        ("podMonitor.interval=often", "podMonitor.interval"),
    ],
)
def test_chart_invalid_value_is_rejected_by_name(value: str, message: str) -> None:
    completed = helm("template", "wattline", CHART, "--set", IMAGE, "--set", value)
    assert completed.returncode != 0
    assert message in completed.stderr


def test_chart_passes_the_linter() -> None:
    completed = helm("lint", "--strict", CHART, "--set", IMAGE)
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_chart_package_contains_linked_files(tmp_path: Path) -> None:
    completed = helm("package", CHART, "--destination", tmp_path)
    assert completed.returncode == 0, completed.stderr
    with tarfile.open(tmp_path / "wattline-exporter-0.1.0.tgz") as package:
        contents = {member.name: member for member in package.getmembers()}
        for name, theirs in {
            "wattline.rules.yml": "deploy/prometheus/wattline.rules.yml",
            "wattline.alerts.yml": "deploy/prometheus/wattline.alerts.yml",
            "dashboards/wattline-node.json": "grafana/dashboards/wattline-node.json",
        }.items():
            file = package.extractfile(contents[f"wattline-exporter/files/{name}"])
            assert file is not None
            assert file.read() == (REPOSITORY / theirs).read_bytes()


def test_chart_notes_list_the_remaining_steps(tmp_path: Path) -> None:
    """Render the notes as part of an object, because without a cluster they are not printed."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    (chart / "templates" / "NOTES.txt").rename(chart / "NOTES.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'kind: Notes\ntext: {{ tpl (.Files.Get "NOTES.txt") . | quote }}\n'
    )
    completed = helm(
        "template", "wattline", chart, "--namespace", "power", "--set", IMAGE, "--set", "mode=runs"
    )
    assert completed.returncode == 0, completed.stderr
    (notes,) = [
        d["text"] for d in yaml.safe_load_all(completed.stdout) if d and d["kind"] == "Notes"
    ]
    assert "WATTLINE_EXPORTER=http://wattline-runs.power:9847" in notes
    assert "kubectl -n power create secret generic wattline-token --from-file=token" in notes
    assert "enforce=privileged" in notes
