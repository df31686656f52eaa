import docker.errors
import pytest
import requests
import urllib3

from wattline_workloads.jobs.containers import container_engine


def test_find_engine_no_socket_names_searched_paths(tmp_path):
    with pytest.raises(container_engine.EngineError) as error:
        container_engine.find_engine(None, {"XDG_RUNTIME_DIR": "/run/user/7"}, tmp_path)

    assert (
        f"{tmp_path}/var/run/docker.sock, /run/user/7/docker.sock, /run/user/7/podman/podman.sock"
        in str(error.value)
    )
    assert "--host" in str(error.value)


def test_error_cause_permission_denied_names_socket_group():
    refused = PermissionError(13, "Permission denied")
    wrapped = requests.exceptions.ConnectionError(
        urllib3.exceptions.ProtocolError("Connection aborted.", refused)
    )

    assert container_engine.error_cause(wrapped).startswith(
        "permission denied; join the group of the socket"
    )


def test_error_cause_no_gpu_driver_names_container_toolkit():
    text = 'could not select device driver "" with capabilities: [[gpu]]'
    error = docker.errors.APIError("500 Server Error", explanation=text)

    assert container_engine.error_cause(error).startswith(
        f"{text}; install the NVIDIA Container Toolkit"
    )
