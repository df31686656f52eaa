"""Public names of the base, and what its import loads."""

import subprocess
import sys

import pytest

import wattline

CLIENT_MODULES = {"http.client", "ssl", "wattline.client.api", "wattline.runs.run"}


def test_contract_import_loads_no_client():
    code = "import sys, wattline.contract.metrics; print(*sys.modules)"
    output = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)

    assert not CLIENT_MODULES & set(output.split())


@pytest.mark.parametrize("name", wattline.__all__)
def test_public_name_is_loaded_at_its_first_use(name):
    code = f"import wattline; print(wattline.{name}.__name__)"
    output = subprocess.check_output([sys.executable, "-P", "-c", code], text=True)

    assert output == f"{name}\n"


def test_dir_has_the_public_names():
    assert set(wattline.__all__) <= set(dir(wattline))


def test_unknown_name_raises_attribute_error():
    with pytest.raises(AttributeError, match="module 'wattline' has no attribute 'stop'"):
        _ = wattline.stop
