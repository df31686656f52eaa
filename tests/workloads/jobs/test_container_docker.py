"""Job `container` with a real Docker: differences from Podman."""

import signal
from collections.abc import Iterator

import pytest

from tests.fakes import docker as docker_service
from tests.fakes.docker import IMAGE, Docker
from tests.polling import eventually


@pytest.fixture(scope="module")
def docker() -> Iterator[Docker]:
    with docker_service.docker_service() as service:
        yield service


@pytest.fixture
def arguments(docker):
    """Return the arguments of a job that runs a shell script in the image."""

    def job_arguments(script: str, *options: str) -> tuple[str, ...]:
        common = ("--host", docker.host, "--network", "host")
        return ("job", "container", *common, *options, IMAGE, "--", "sh", "-c", script)

    return job_arguments


def test_docker_output_exit_code_and_environment(exporter, docker, arguments, tmp_path):
    script = (
        r"printf '50%%\r100%%\n'; echo err >&2; echo $NVIDIA_VISIBLE_DEVICES; touch /box/new "
        r"2>&1; exit 3"
    )
    done = exporter.workloads(*arguments(script, "--volume", f"{tmp_path}:/box:ro"))

    assert done.returncode == 3, done.stderr
    assert done.stdout.splitlines() == ["100%", "void", "touch: /box/new: Read-only file system"]
    assert "err\n" in done.stderr
    assert docker.containers() == []


def test_docker_score_is_reported_as_result(exporter, arguments):
    exporter.workloads(
        *arguments("mkdir -p /root/results; echo 'time: 12.5' > /root/results/metrics.yml")
    )

    assert exporter.api.only_run.results["score_seconds"] == 12.5


def test_docker_processes_are_registered_and_end_with_job(exporter, docker, arguments):
    process = exporter.start(
        "-m",
        "wattline_workloads",
        *arguments("trap 'echo bye; exit 0' TERM; echo ready; while true; do sleep 0.1; done"),
    )
    with process:
        assert process.stdout.readline() == "ready\n"
        eventually(lambda: any(body.get("cgroup") for body in exporter.api.bodies("/processes")))
        (container,) = docker.containers()
        pid = int(docker("inspect", "--format", "{{.State.Pid}}", container))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=60)

    assert (process.returncode, out) == (143, "bye\n")
    assert {"pids": [pid], "cgroup": f"container:{container}"} in exporter.api.bodies("/processes")
    assert docker.containers() == []


@pytest.mark.parametrize("gpus", ["GPU-aaaa,GPU-bbbb", "all"])
def test_docker_container_gpus_option_selects_gpus(exporter, arguments, gpus):
    done = exporter.workloads(*arguments("echo $NVIDIA_VISIBLE_DEVICES", "--container-gpus", gpus))

    assert done.stdout == f"{gpus}\n", done.stderr


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--entrypoint", "/no/such"), "/no/such: no such file"),
        (("--volume", "/no/such:/in"), "bind source path does not exist: /no/such"),
    ],
)
def test_docker_failed_start_is_one_line_error(exporter, docker, arguments, options, cause):
    done = exporter.workloads(*arguments("true", *options))

    assert done.returncode == 1
    assert cause in done.stderr
    assert "Traceback" not in done.stderr
    assert docker.containers() == []
