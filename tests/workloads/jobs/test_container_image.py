"""Job `container` with a real Podman: images and errors before the start."""

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import docker

from tests.fakes import registry
from tests.fakes.podman import IMAGE
from wattline_workloads.jobs.containers import container_engine


def test_container_image_unknown_lists_available(exporter, podman):
    done = exporter.workloads("job", "container", "--host", podman.host, "nowhere/absent:7")

    assert done.returncode == 1
    assert (
        f"unknown image nowhere/absent:7 at {podman.host}; available images: {IMAGE}; add --pull "
        "missing" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert exporter.api.only_run.outcome == "failed"


def test_container_image_failed_start_lists_available(exporter, podman):
    done = exporter.workloads("job", "container", "--host", podman.host, IMAGE, "/no/such/program")

    assert done.returncode == 1
    assert f"container: cannot start {IMAGE}: " in done.stderr
    assert "/no/such/program" in done.stderr
    assert done.stderr.count(f"available images: {IMAGE}") == 1
    assert "Traceback" not in done.stderr
    assert podman.containers() == []


def test_container_image_short_name_is_resolved(exporter, podman):
    done = exporter.workloads("job", "container", "--host", podman.host, "tiny:1", "echo", "here")

    assert (done.returncode, done.stdout) == (0, "here\n")


def test_container_image_missing_is_pulled_once_with_option(exporter, podman, tmp_path):
    podman("push", IMAGE, f"oci:{tmp_path}:1")
    with registry.registry_server(tmp_path) as address:
        image = f"{address}/far/tiny:1"
        options = ("--host", podman.host, "--pull", "missing")
        pulled = exporter.workloads("job", "container", *options, image, "echo", "pulled")
    cached = exporter.workloads("job", "container", *options, image, "echo", "there")
    podman("rmi", image)

    assert (pulled.returncode, pulled.stdout) == (0, "pulled\n"), pulled.stderr
    assert f"pulling {image}" in pulled.stderr
    assert (cached.returncode, cached.stdout) == (0, "there\n"), cached.stderr
    assert "pulling" not in cached.stderr


def test_container_image_failed_pull_is_one_line_error(exporter, podman):
    image = "127.0.0.1:1/far/tiny:1"
    done = exporter.workloads("job", "container", "--host", podman.host, "--pull", "missing", image)

    assert done.returncode == 1
    assert f"container: cannot pull {image}: " in done.stderr
    assert "connection refused" in done.stderr
    assert "Traceback" not in done.stderr


def test_list_images_option_starts_no_run(exporter, podman):
    done = exporter.workloads("job", "container", "--list-images", DOCKER_HOST=podman.host)

    assert done.returncode == 0
    assert done.stdout.startswith(f"{IMAGE} ")
    assert exporter.api.runs == {}


def test_container_engine_missing_is_one_line_error(exporter, tmp_path):
    done = exporter.workloads("job", "container", "--host", str(tmp_path / "docker.sock"), IMAGE)

    assert done.returncode == 1
    assert (
        f"cannot reach a container engine at unix://{tmp_path}/docker.sock: No such file or "
        "directory" in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_container_engine_other_server_is_one_line_error(exporter):
    class Page(BaseHTTPRequestHandler):
        def do_GET(self):  # the library's name
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_): ...

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.handle_request).start()
        url = f"tcp://127.0.0.1:{server.server_port}"
        done = exporter.workloads("job", "container", "--host", url, IMAGE)

    assert done.returncode == 1
    assert (
        f"cannot use the server at {url}: it is no container engine; set another --host"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


def test_container_engine_uses_the_newest_api_of_podman(podman):
    engine = container_engine.find_engine(podman.host, {})

    assert (engine.is_podman, engine.api.api_version) == (
        True,
        docker.APIClient(podman.host, "auto").api_version,
    )
    assert podman.containers() == [entry["Id"] for entry in engine.api.containers(all=True)]


def test_container_invalid_options_fail_before_run(exporter):
    for wrong in (
        (),
        ("--volume", "data:target", IMAGE),
        ("--shm-size", "much", IMAGE),
        ("--env", "UNSET_HERE", IMAGE),
    ):
        done = exporter.workloads("job", "container", *wrong)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    assert exporter.api.runs == {}
