"""Release artifacts: versions agree, and builds are equal."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import pytest
import yaml

from deploy.packages.commands import ROOT
from deploy.packages.release import check_release, project_version, write_chart
from tests.deploy.helm import CHART, IMAGE, helm
from tests.deploy.packages.conftest import needs_build

_CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-12-01\n"
)


def test_release_of_the_newest_version_in_the_changelog_is_accepted():
    check_release("0.2.0", _CHANGELOG, [])
    check_release("0.2.0", _CHANGELOG, ["v0.2.0", "other"])


@pytest.mark.parametrize(
    ("version", "changelog", "tags", "words"),
    [
        ("0.1.0", _CHANGELOG, [], "the newest release in CHANGELOG.md is 0.2.0"),
        ("0.3.0", _CHANGELOG, [], "the newest release in CHANGELOG.md is 0.2.0"),
        ("0.2.0", "## [Unreleased]\n", [], "the newest release in CHANGELOG.md is no release"),
        ("0.2.0", _CHANGELOG, ["v0.1.0"], "the commit has the tag v0.1.0"),
    ],
)
def test_release_of_another_version_is_refused(version, changelog, tags, words):
    with pytest.raises(SystemExit, match=words):
        check_release(version, changelog, tags)


@pytest.mark.parametrize("name", ["build", "runtime"])
def test_lock_files_have_hashes_and_no_index(name):
    text = (ROOT / f"deploy/packages/{name}.txt").read_text()
    packages = text.replace("\\\n", "").splitlines()

    assert packages
    assert all("==" in line and "--hash=sha256:" in line for line in packages)
    assert "://" not in text


@needs_build
def test_two_builds_are_equal(built):
    first, second = ((folder / "SHA256SUMS").read_text() for folder in built)

    assert first == second
    names = {line.split("  ")[1]: line.split("  ")[0] for line in first.splitlines()}
    assert {Path(name).suffix for name in names} >= {".whl", ".gz", ".pyz", ".json", ".deb", ".rpm"}
    for name, digest in names.items():
        assert hashlib.sha256((built[0] / name).read_bytes()).hexdigest() == digest


@needs_build
def test_bom_lists_the_locked_packages(built):
    parts = json.loads((built[0] / "wattline.cdx.json").read_text())["components"]
    listed = {part["name"]: part.get("version") for part in parts}

    assert listed["wattline"] == project_version(ROOT)
    assert {"aiohttp", "numpy", "psutil", "pydantic"} <= listed.keys()


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("chart") / "wattline-exporter.tgz"
    write_chart(path, 1_700_000_000)
    return path


def test_chart_archive_renders_the_same_objects_and_has_no_links(chart):
    values = (
        "--set",
        IMAGE,
        "--set",
        "rules.kind=PrometheusRule",
        "--set",
        "dashboards.enabled=true",
    )
    archive, folder = (helm("template", "wattline", path, *values) for path in (chart, CHART))

    assert archive.returncode == 0, archive.stderr
    assert archive.stdout == folder.stdout
    with tarfile.open(chart) as tar:
        assert all(member.isreg() for member in tar)


def test_chart_project_and_security_policy_have_one_version(chart):
    """The policy for deprecations counts minor releases of this version."""
    version = project_version(ROOT)
    shown = yaml.safe_load(helm("show", "chart", chart).stdout)

    assert (shown["version"], shown["appVersion"]) == (version, version)
    assert "## Deprecations" in (ROOT / "SECURITY.md").read_text()
    assert (
        f"wattline-{version}-py3-none-any.whl" in (ROOT / "deploy/packages/README.md").read_text()
    )
