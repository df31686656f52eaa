import os
import stat

import pytest

from workloads.client.gpus import GpusError, Listed, choose, listed

_TWO_ALIKE = (Listed(0, "H200", "GPU-aaaa1111"), Listed(1, "H200", "GPU-bbbb2222"))
_TWO_KINDS = (Listed(0, "A40", "GPU-aaaa1111"), Listed(1, "H200", "GPU-bbbb2222"))


def _choose(option=None, here=(), **environ):
    return choose(option, environ, lambda: here)


def test_all_is_the_whole_node():
    assert _choose("all").field() == {}


def test_nothing_said_is_the_gpus_on_which_the_job_is_seen():
    assert _choose().field() == {"gpus": []}


def test_indices_become_the_uuids_that_are_seen_here():
    assert _choose("1,0", _TWO_ALIKE).gpus == ("GPU-bbbb2222", "GPU-aaaa1111")


def test_indices_stay_indices_where_nothing_here_can_tell():
    assert _choose("0,1").gpus == ("0", "1")


def test_uuids_pass_and_may_be_abbreviated():
    assert _choose("GPU-bbbb", _TWO_ALIKE).gpus == ("GPU-bbbb2222",)
    assert _choose("MIG-1234-5678").gpus == ("MIG-1234-5678",)


def test_the_option_wins_over_the_environment():
    assert _choose("0", CUDA_VISIBLE_DEVICES="1").gpus == ("0",)


@pytest.mark.parametrize("option", ["", "0,,1", "x", "0;1", "-1"])
def test_an_option_that_names_no_gpu_is_refused_with_examples(option):
    with pytest.raises(GpusError, match="give indices like 0,1"):
        _choose(option)


def test_cuda_visible_devices_counts_as_nvml_where_all_gpus_are_alike():
    choice = _choose(here=_TWO_ALIKE, CUDA_VISIBLE_DEVICES="1")

    assert (choice.gpus, choice.asked, choice.doubt) == (("GPU-bbbb2222",), False, None)


def test_cuda_visible_devices_is_in_doubt_where_gpus_differ():
    choice = _choose(here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="0")

    assert choice.gpus == ()
    assert "set CUDA_DEVICE_ORDER=PCI_BUS_ID" in choice.doubt


def test_cuda_visible_devices_is_clear_in_the_order_of_the_bus():
    assert _choose(here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="0", CUDA_DEVICE_ORDER="PCI_BUS_ID").gpus == ("GPU-aaaa1111",)


def test_uuids_in_cuda_visible_devices_are_never_in_doubt():
    assert _choose(here=_TWO_KINDS, CUDA_VISIBLE_DEVICES="GPU-bbbb2222").gpus == ("GPU-bbbb2222",)


@pytest.mark.parametrize(
    ("text", "gpus"), [("0,-1,1", ("0",)), ("", ()), ("-1", ()), ("NoDevFiles", ()), ("0, 1", ("0", "1"))]
)
def test_cuda_takes_the_gpus_before_the_first_that_is_invalid(text, gpus):
    assert _choose(CUDA_VISIBLE_DEVICES=text).gpus == gpus


def test_in_a_container_the_hosts_indices_are_the_gpus_that_are_seen_there():
    assert _choose(here=_TWO_ALIKE, NVIDIA_VISIBLE_DEVICES="2,3").gpus == ("GPU-aaaa1111", "GPU-bbbb2222")


def test_a_container_without_nvidia_smi_still_counts_within_its_own_gpus():
    assert _choose(NVIDIA_VISIBLE_DEVICES="2,3", CUDA_VISIBLE_DEVICES="1").gpus == ("3",)


@pytest.mark.parametrize("text", ["all", "none", "void", ""])
def test_the_words_of_nvidias_images_say_nothing_about_the_job(text):
    assert _choose(here=_TWO_ALIKE, NVIDIA_VISIBLE_DEVICES=text).gpus == ()


def test_nvidia_smi_is_read_also_where_gpus_are_split(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-aaaa1111)'\n"
        "echo '  MIG 1g.10gb     Device  0: (UUID: MIG-cccc3333)'\n"
        "echo 'GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-bbbb2222)'\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    assert listed() == (
        Listed(0, "NVIDIA A100-SXM4-80GB", "GPU-aaaa1111"),
        Listed(1, "NVIDIA A100-SXM4-80GB", "GPU-bbbb2222"),
    )


def test_a_machine_without_nvidia_smi_lists_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))

    assert listed() == ()
