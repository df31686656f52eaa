"""Job `container` with a real Podman: options, GPUs and score."""

import os

import pytest

from tests.fakes.podman import IMAGE
from tests.fakes.run_api import RunApi, run_api_server
from tests.workloads.programs import Exporter


def test_container_score_and_numbers_are_results(exporter, job):
    text = r"time: 12.5\nloss: 1e-3\nname: mnist\nwidth.x: 3\n"
    done = job(f"mkdir -p /root/results; printf '{text}' > /root/results/metrics.yml")

    run = exporter.api.only_run
    assert done.returncode == 0, done.stderr
    assert run.work == {}  # seconds of a benchmark are no amount of work
    assert run.results == {"score_seconds": 12.5, "loss": 0.001, "width_x": 3.0}


def test_container_score_folder_is_copied_without_links(exporter, job, tmp_path):
    files = "mkdir -p /root/results/more; echo 1 > /root/results/a; echo 2 > /root/results/more/b"
    links = "ln -s /etc/passwd /root/results/link; ln /root/results/a /root/results/hard"
    done = job(f"{files}; {links}", "--out", str(tmp_path))

    folder = tmp_path / exporter.api.only_run.run_id / "results"
    assert done.returncode == 0, done.stderr
    assert {str(path.relative_to(folder)) for path in folder.rglob("*")} == {"a", "more", "more/b"}
    assert ((folder / "a").read_text(), (folder / "more/b").read_text()) == ("1\n", "2\n")


def test_container_score_older_than_container_is_ignored(exporter, job):
    done = job("cat /old/metrics.yml", "--results-path", "/old/metrics.yml")

    assert done.stdout == "time: 99\n"
    assert "ignored /old/metrics.yml: it is older than the container" in done.stderr
    assert (exporter.api.only_run.work, exporter.api.only_run.results) == ({}, {})


def test_container_score_of_failed_container_is_ignored(exporter, job):
    job("mkdir /root/results; echo 'time: 1' > /root/results/metrics.yml; exit 1")

    assert exporter.api.only_run.work == {}


def test_container_options_set_environment_volume_and_memory(job, tmp_path):
    (tmp_path / "given").write_text("a file\n")
    script = (
        "pwd; echo $COLOUR $SHAPE; cat /box/given; touch /box/new 2>&1; df -k /dev/shm | "
        "tail -1 | awk '{print $2}'"
    )
    done = job(
        script,
        *("--env", "COLOUR=dark red", "--env", "SHAPE", "--workdir", "/tmp", "--shm-size", "3m"),
        *("--volume", f"{tmp_path}:/box:ro"),
        SHAPE="round",
    )

    *most, touched, shm_kib = done.stdout.splitlines()
    assert most == ["/tmp", "dark red round", "a file"]
    assert "Read-only file system" in touched
    assert shm_kib == "3072"


def test_container_entrypoint_receives_options_after_image(exporter, podman):
    options = ("--host", podman.host, "--entrypoint", "/bin/echo")
    done = exporter.workloads(
        "job", "container", *options, IMAGE, "--", "--gpus", "7", "-h", "--", "x"
    )

    assert done.stdout == "--gpus 7 -h -- x\n"


def test_container_without_gpus_sees_none(job):
    assert job("echo $NVIDIA_VISIBLE_DEVICES").stdout == "void\n"


def test_container_receives_gpus_of_run(podman):
    if os.getuid() != 0:
        pytest.skip("only root may describe devices in /var/run/cdi")
    api = RunApi(known_gpus=("GPU-1", podman.gpu))
    with run_api_server(api) as address:
        command = (
            "job",
            "container",
            "--gpus",
            "1",
            "--host",
            podman.host,
            IMAGE,
            "--",
            "sh",
            "-c",
            "echo $SEEN_GPU",
        )
        done = Exporter(api, address).workloads(*command)

    assert (done.stdout, done.returncode) == (f"{podman.gpu}\n", 0), done.stderr
    assert [gpu.uuid for gpu in api.only_run.gpus] == [podman.gpu]


def test_container_unknown_gpu_names_cdi_remedy(podman, job):
    done = job("true", "--container-gpus", "GPU-absent")

    assert done.returncode == 1
    assert "nvidia.com/gpu=GPU-absent" in done.stderr
    assert "nvidia-ctk cdi generate" in done.stderr
    assert podman.containers() == []
