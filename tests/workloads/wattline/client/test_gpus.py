import os
import stat

import pytest

from wattline.client.gpus import GpusError, VisibleGpu, choose_gpus, list_visible_gpus

_TWO_ALIKE = (VisibleGpu(0, "H200", "GPU-aaaa1111"), VisibleGpu(1, "H200", "GPU-bbbb2222"))
_TWO_KINDS = (VisibleGpu(0, "A40", "GPU-aaaa1111"), VisibleGpu(1, "H200", "GPU-bbbb2222"))


def _choose(option=None, here=(), **environ):
    return choose_gpus(option, environ, lambda: here)


def test_choose_gpus_all_selects_whole_node():
    assert _choose("all").field() == {}


def test_choose_gpus_without_hint_selects_gpus_in_use():
    assert _choose().field() == {"gpus": []}


def test_choose_gpus_index_becomes_uuid():
    assert _choose("1,0", _TWO_ALIKE).gpus == ("GPU-bbbb2222", "GPU-aaaa1111")


def test_choose_gpus_index_without_nvidia_smi_stays_index():
    assert _choose("0,1").gpus == ("0", "1")


def test_choose_gpus_abbreviated_uuid_is_completed():
    assert _choose("GPU-bbbb", _TWO_ALIKE).gpus == ("GPU-bbbb2222",)
    assert _choose("MIG-1234-5678").gpus == ("MIG-1234-5678",)


def test_choose_gpus_option_overrides_environment():
    assert _choose("0", CUDA_VISIBLE_DEVICES="1").gpus == ("0",)


@pytest.mark.parametrize("option", ["", "0,,1", "x", "0;1", "-1"])
def test_choose_gpus_invalid_option_fails_with_examples(option):
    with pytest.raises(GpusError, match="use indices \\(0,1\\)"):
        _choose(option)


def test_choose_gpus_cuda_index_with_identical_gpus_follows_nvml():
    choice = _choose(here=_TWO_ALIKE, CUDA_VISIBLE_DEVICES="1")

    assert (choice.gpus, choice.is_explicit, choice.warning) == (("GPU-bbbb2222",), False, None)


def test_choose_gpus_cuda_index_with_mixed_gpus_warns():
    choice = _choose(here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="0")

    assert choice.gpus == ()
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in choice.warning
    assert choice.warning.endswith(
        'name the GPUs with --gpus 0, in Python with wattline.run(gpus="0")'
    )


def test_choose_gpus_cuda_index_in_bus_order_follows_nvml():
    assert _choose(
        here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID"
    ).gpus == ("GPU-aaaa1111",)


def test_choose_gpus_cuda_uuid_with_mixed_gpus_is_accepted():
    assert _choose(here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="GPU-bbbb2222").gpus == ("GPU-bbbb2222",)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [("0,-1,1", ("0",)), ("", ()), ("-1", ()), ("NoDevFiles", ()), ("0, 1", ("0", "1"))],
)
def test_choose_gpus_cuda_list_ends_at_first_invalid_entry(text, gpus):
    assert _choose(CUDA_VISIBLE_DEVICES=text).gpus == gpus


def test_choose_gpus_container_host_indices_map_to_visible_gpus():
    assert _choose(here=_TWO_ALIKE, NVIDIA_VISIBLE_DEVICES="2,3").gpus == (
        "GPU-aaaa1111",
        "GPU-bbbb2222",
    )


def test_choose_gpus_container_without_nvidia_smi_maps_indices():
    assert _choose(NVIDIA_VISIBLE_DEVICES="2,3", CUDA_VISIBLE_DEVICES="1").gpus == ("3",)


@pytest.mark.parametrize("text", ["all", "none", "void", ""])
def test_choose_gpus_default_of_nvidia_images_is_no_hint(text):
    assert _choose(here=_TWO_ALIKE, NVIDIA_VISIBLE_DEVICES=text).gpus == ()


def test_list_visible_gpus_with_mig_lists_whole_gpus(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa1111)'\n"
        "echo '  MIG 1g.10gb     Device  0: (UUID: MIG-cccc3333)'\n"
        "echo 'GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb2222)'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert list_visible_gpus() == (
        VisibleGpu(0, "NVIDIA A100-SXM4-80GB", "GPU-aaaa1111"),
        VisibleGpu(1, "NVIDIA A100-SXM4-80GB", "GPU-bbbb2222"),
    )


def test_list_visible_gpus_without_nvidia_smi_is_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert list_visible_gpus() == ()
