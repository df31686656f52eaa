"""Release artifacts: versions agree, builds are equal, and each package measures."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.packages.release import check_release, project_version
from tests.daemon import daemon

ROOT = Path(__file__).parents[2]
_CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-01\n\n## [0.1.0] - 2026-12-01\n"

needs_build = pytest.mark.skipif(
    "WATTLINE_RELEASE_TEST" not in os.environ, reason="two builds take minutes: make release-test"
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("dist")]
    for folder in folders:
        command = ["make", "release", "SNAPSHOT=1", f"OUT={folder}", f"PYTHON={sys.executable}"]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=500)
    return folders


@needs_build
def test_two_builds_are_equal(built):
    first, second = ((folder / "SHA256SUMS").read_text() for folder in built)

    assert first == second
    names = {line.split("  ")[1]: line.split("  ")[0] for line in first.splitlines()}
    assert {Path(name).suffix for name in names} >= {".whl", ".gz", ".pyz", ".json"}
    for name, digest in names.items():
        assert hashlib.sha256((built[0] / name).read_bytes()).hexdigest() == digest


@needs_build
def test_bom_lists_the_locked_packages(built):
    parts = json.loads((built[0] / "wattline.cdx.json").read_text())["components"]
    listed = {part["name"]: part.get("version") for part in parts}

    assert listed["wattline"] == project_version(ROOT)
    assert {"aiohttp", "numpy", "psutil", "pydantic"} <= listed.keys()


@needs_build
def test_zipapp_measures_and_its_runs_do_not_see_its_packages(built, tmp_path):
    program = [sys.executable, str(built[0] / "wattline.pyz")]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SHIV_ROOT": str(tmp_path / "shiv")}
    options = ["--idle-seconds", "1", "--state.path", str(tmp_path / "state"), "--web.listen-address", "127.0.0.1:0"]
    with daemon(tmp_path, "--simulate", "2xH200", env=environment, program=program[1:], nursery=None) as exporter:
        job = "import os, sys; print(os.environ.get('PYTHONPATH'), *sys.path)"
        run = ["run", "--exporter", exporter.url, "--gpus", "0", "--", sys.executable, "-c", job]
        ran = subprocess.run(
            [*program, *run], env=environment, capture_output=True, text=True, timeout=120, check=False
        )
    checked = subprocess.run(
        [*program, "check", "--simulate", "2xH200", *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("None ")
    assert "shiv" not in ran.stdout
    assert " J" in ran.stderr, ran.stderr
    assert "idle    GPU 0 draws" in checked.stdout, checked.stdout + checked.stderr
