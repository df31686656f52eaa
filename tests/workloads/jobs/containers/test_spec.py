"""Parsing of container options, and request bodies for Docker and Podman."""

import argparse

import pytest

from wattline_workloads.jobs import container as container_job
from wattline_workloads.jobs.containers.spec import (
    ContainerSpec,
    Volume,
    docker_body,
    parse_engine_size,
    parse_volume,
    podman_body,
    resolve_environment,
)

FULL = ContainerSpec(
    image="an/image:1",
    arguments=("train", "--epochs", "3"),
    entrypoint="/bin/sh",
    env={"A": "1"},
    volumes=(Volume("/data", "/in", read_only=True), Volume("kept", "/out")),
    shm_bytes=1 << 36,
    network="host",
    name="one",
    workdir="/root",
    gpus=("GPU-aaaa",),
    labels={"wattline.run_id": "r"},
)


def test_docker_body_full_spec_has_all_fields():
    assert docker_body(FULL) == {
        "Image": "an/image:1",
        "Cmd": ["train", "--epochs", "3"],
        "Entrypoint": ["/bin/sh"],
        "Env": ["A=1"],
        "WorkingDir": "/root",
        "Labels": {"wattline.run_id": "r"},
        "HostConfig": {
            "ShmSize": 68_719_476_736,
            "NetworkMode": "host",
            "Mounts": [
                {"Type": "bind", "Source": "/data", "Target": "/in", "ReadOnly": True},
                {"Type": "volume", "Source": "kept", "Target": "/out", "ReadOnly": False},
            ],
            "DeviceRequests": [
                {"Driver": "", "Capabilities": [["gpu"]], "DeviceIDs": ["GPU-aaaa"]}
            ],
        },
    }


def test_podman_body_full_spec_has_all_fields():
    assert podman_body(FULL) == {
        "image": "an/image:1",
        "command": ["train", "--epochs", "3"],
        "entrypoint": ["/bin/sh"],
        "env": {"A": "1"},
        "work_dir": "/root",
        "labels": {"wattline.run_id": "r"},
        "name": "one",
        "shm_size": 68_719_476_736,
        "mounts": [
            {"type": "bind", "source": "/data", "destination": "/in", "options": ["rbind", "ro"]}
        ],
        "volumes": [{"Name": "kept", "Dest": "/out", "Options": ["rw"]}],
        "devices": [{"path": "nvidia.com/gpu=GPU-aaaa"}],
        "netns": {"nsmode": "host"},
    }


def test_engine_bodies_minimal_spec_disable_gpus_only():
    assert docker_body(ContainerSpec("i")) == {"Image": "i", "Env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    assert podman_body(ContainerSpec("i")) == {
        "image": "i",
        "env": {"NVIDIA_VISIBLE_DEVICES": "void"},
    }


def test_engine_bodies_all_gpus_are_one_request():
    all_of_them = ContainerSpec("i", gpus=None)
    assert docker_body(all_of_them)["HostConfig"]["DeviceRequests"] == [
        {"Driver": "", "Capabilities": [["gpu"]], "Count": -1}
    ]
    assert podman_body(all_of_them)["devices"] == [{"path": "nvidia.com/gpu=all"}]
    assert "env" not in podman_body(all_of_them)


@pytest.mark.parametrize(
    ("network", "fields"),
    [
        ("none", {"netns": {"nsmode": "none"}}),
        ("container:other", {"netns": {"nsmode": "container", "value": "other"}}),
        ("lab", {"netns": {"nsmode": "bridge"}, "networks": {"lab": {}}}),
    ],
)
def test_podman_body_network_sets_namespace(network, fields):
    body = podman_body(ContainerSpec("i", network=network))
    assert {name: body[name] for name in body if name in ("netns", "networks")} == fields


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("/data:/in", Volume("/data", "/in")),
        ("/data:/in:ro", Volume("/data", "/in", read_only=True)),
        ("kept:/out:rw", Volume("kept", "/out")),
    ],
)
def test_parse_volume_reads_source_target_and_mode(text, read):
    assert parse_volume(text) == read


def test_parse_volume_relative_source_is_resolved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert parse_volume("./data:/in") == Volume(f"{tmp_path}/data", "/in")


@pytest.mark.parametrize("text", ["/data", "/data:in", ":/in", "/data:/in:ro:z", "/data:/in:exec"])
def test_parse_volume_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a volume"):
        parse_volume(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("65536", 65_536), ("512m", 536_870_912), ("64G", 68_719_476_736), ("2GiB", 2 << 30)],
)
def test_parse_engine_size_units_are_powers_of_1024(text, size):
    assert parse_engine_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "64x", "1.5g"])
def test_parse_engine_size_invalid_text_is_rejected(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        parse_engine_size(text)


def test_resolve_environment_name_alone_takes_own_value():
    assert resolve_environment(["COLOUR", "EMPTY=", "A=b=c"], {"COLOUR": "red"}) == {
        "COLOUR": "red",
        "EMPTY": "",
        "A": "b=c",
    }


def test_env_option_name_alone_keeps_value_out_of_options(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    options = container_job.parser().parse_args(["--env", "TOKEN", "image"])

    assert options.env == ["TOKEN"]
