"""Example container images: build of the smallest one, and scripts of the others."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fakes.podman import IMAGE
from tests.workloads.programs import TORCH_NURSERY

IMAGES = Path(__file__).parents[4] / "workloads/wattline_workloads/jobs/containers/images"
_SCRIPT = """
import runpy, sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
FOLDERS = sorted(path.parent.name for path in IMAGES.glob("*/Dockerfile"))


def build(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(IMAGES / "build.sh"), *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def script(path: str, folder: Path, *options: str) -> dict[str, float]:
    program = [
        "-c",
        _SCRIPT,
        str(IMAGES / "gpu-base"),
        str(IMAGES / path),
        "--results",
        str(folder),
        *options,
    ]
    done = TORCH_NURSERY.run(program, {**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    score: dict[str, float] = yaml.safe_load((folder / "metrics.yml").read_text())
    return score


def test_dummy_image_is_built_and_run(exporter, podman):
    engine = shlex.join(podman.command())
    environment = {"ENGINE": engine, "CONTAINERS_CONF": podman.environment["CONTAINERS_CONF"]}
    build_result = build("dummy", "--build-arg", f"BASE={IMAGE}", **environment)
    assert build_result.returncode == 0, build_result.stderr

    done = exporter.workloads(
        "job", "container", "--host", podman.host, "wattline/dummy", "--", "sleep", "0.2"
    )
    assert done.returncode == 0, done.stderr
    assert exporter.api.only_run.outcome == "ok"


def test_build_script_unknown_image_lists_names():
    for wrong in ((), ("nothing",)):
        done = build(*wrong)
        assert done.returncode == 2
        assert "mnist synthetic-regression stemdl-1gpu stemdl-2gpu mantid-1" in done.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_dockerfile_has_base_argument_and_existing_files(name):
    text = (IMAGES / name / "Dockerfile").read_text()
    instructions = [
        line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")
    ]

    assert re.fullmatch(r"ARG BASE=\S+", instructions[0])
    assert instructions[1] == "FROM ${BASE}"
    assert re.match(r"(ENTRYPOINT|CMD|COPY|WORKDIR)", instructions[-1])
    for file_name in re.findall(r"^COPY (\S+) ", text, re.MULTILINE):
        assert (IMAGES / name / file_name).is_file()


def test_build_script_covers_each_folder():
    assert FOLDERS == ["dummy", "gpu-base", "mantid", "mnist", "stemdl", "synthetic-regression"]
    text = (IMAGES / "build.sh").read_text()
    assert all(re.search(rf"\b{folder}\b", text) for folder in FOLDERS)


def test_synthetic_regression_writes_score(tmp_path):
    pytest.importorskip("torch")
    sizes = (
        "--samples",
        "64",
        "--inputs",
        "4",
        "--hidden",
        "8",
        "--epochs",
        "2",
        "--batch-size",
        "16",
    )
    score = script("synthetic-regression/synthetic_regression.py", tmp_path, *sizes)

    assert score["time"] > 0
    assert score["samples_per_second"] == pytest.approx(128 / score["time"])
    assert score["loss"] > 0


def test_mnist_writes_score(tmp_path):
    pytest.importorskip("torch")
    score = script(
        "mnist/mnist.py", tmp_path, "--synthetic", "32", "--epochs", "1", "--batch-size", "16"
    )

    assert score["images_per_second"] == pytest.approx(32 / score["time"])
    assert 1 < score["loss"] < 4  # ten classes: ln 10 = 2.3 before training
