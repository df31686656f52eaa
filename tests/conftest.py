"""Settings of all tests."""

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# on a busy machine generating an example can take longer than running it
settings.register_profile("wattline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wattline")

# the tests start programs hundreds of times: always cache compiled modules
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# one thread per BLAS: parallel tests would otherwise compete for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# a shell's background job ignores these signals, and child processes would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)

_LONGEST = {
    "test_kill.py",
    "test_demo.py",
    "test_one_run_from_every_source.py",
    "test_crowd.py",
    "test_llm_real_server.py",
    "test_attributed_runs.py",
    "test_hostile_requests.py",
    "test_clocks.py",
    "test_real_exporter.py",
    "test_resnet.py",
    "test_faults.py",
    "test_hangs.py",
    "test_lost.py",
    "test_meter_accuracy.py",
    "test_cluster.py",
    "test_disk.py",
    "test_image.py",
    "test_kubernetes.py",
    "test_recommend_sweep.py",
}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run the longest files first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)
