"""Former name of the Python module."""

import wattline
from workloads import client


def test_client_has_the_functions_of_wattline():
    assert (client.run, client.Run) == (wattline.run, wattline.Run)
