import pytest

from wattline.client.gpus import GpusError, VisibleGpu
from wattline_workloads.jobs.container import container_gpus

TWO = (VisibleGpu(0, "NVIDIA H200", "GPU-aaaa"), VisibleGpu(1, "NVIDIA H200", "GPU-bbbb"))


@pytest.mark.parametrize(
    ("option", "environ", "expected"),
    [
        (None, {}, ()),
        (None, {"CUDA_VISIBLE_DEVICES": ""}, ()),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, ("GPU-bbbb",)),
        (None, {"CUDA_VISIBLE_DEVICES": "1,0"}, ("GPU-bbbb", "GPU-aaaa")),
        (None, {"NVIDIA_VISIBLE_DEVICES": "all"}, ()),
        (None, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa", "WATTLINE_SIMULATION": "/state"}, ()),
        ("0", {}, ("GPU-aaaa",)),
        ("0", {"CUDA_VISIBLE_DEVICES": "1"}, ("GPU-aaaa",)),
        ("none", {"CUDA_VISIBLE_DEVICES": "1"}, ()),
        ("all", {}, None),
    ],
)
def test_container_gpus_option_overrides_environment(option, environ, expected):
    assert container_gpus(option, environ, lambda: TWO) == expected


def test_container_gpus_index_without_gpus_logs_and_is_empty(capsys):
    assert container_gpus(None, {"CUDA_VISIBLE_DEVICES": "0"}, lambda: ()) == ()
    assert "nvidia-smi does not list those of CUDA_VISIBLE_DEVICES" in capsys.readouterr().err


def test_container_gpus_uuid_without_nvidia_smi_is_kept():
    assert container_gpus(None, {"CUDA_VISIBLE_DEVICES": "GPU-aaaa"}, lambda: ()) == ("GPU-aaaa",)


def test_container_gpus_invalid_name_is_rejected():
    with pytest.raises(GpusError, match="is not a GPU"):
        container_gpus("first", {}, lambda: TWO)
