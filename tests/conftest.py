"""Settings of all tests."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# on a busy machine generating an example can take longer than running it
settings.register_profile("wattline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wattline")

# the tests start programs hundreds of times: always cache compiled modules
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# one thread per BLAS: parallel tests would otherwise compete for the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

# a shell's background job ignores these signals, and child processes would inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
for ignored in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(ignored, signal.SIG_DFL)

LONGEST_FILES = (
    "deploy/test_image.py",
    "end_to_end/test_one_run_from_every_source.py",
    "end_to_end/test_demo.py",
    "workloads/jobs/test_container.py",
    "workloads/jobs/test_llm_server_transformers.py",
    "end_to_end/test_cluster.py",
    "exporter/runs/test_holders_attribution.py",
    "exporter/daemon/test_many_runs.py",
    "exporter/daemon/test_driver_faults.py",
    "exporter/storage/test_disk_faults.py",
    "exporter/daemon/eight_gpus/test_hangs.py",
    "analyzer/core/runs/test_load_real_exporter.py",
    "exporter/daemon/test_restart.py",
    "exporter/daemon/test_clock_steps.py",
    "exporter/daemon/test_sigkill.py",
    "exporter/meter/test_plausibility_daemon.py",
    "exporter/daemon/eight_gpus/test_lost.py",
    "exporter/web/test_server_hostile_requests.py",
    "exporter/meter/test_meter_accuracy.py",
    "exporter/cli/test_check.py",
    "exporter/daemon/test_gpu_metrics.py",
    "exporter/daemon/test_stop.py",
    "exporter/web/test_access.py",
    "deploy/test_kubernetes.py",
    "workloads/plans/test_results.py",
    "end_to_end/test_pages.py",
    "analyzer/core/sources/test_sources_agree.py",
    "analyzer/report/test_command.py",
    "analyzer/recommend/test_command.py",
    "analyzer/core/runs/test_load_real_servers.py",
    "analyzer/report/untagged/test_tokens.py",
    "analyzer/tenants/test_command.py",
    "analyzer/report/html/test_page.py",
    "grafana/test_live.py",
    "deploy/slurm/test_jobs.py",
    "deploy/test_systemd.py",
)
"""Files of tests from the longest on, below the folder of this one."""
GROUPS = {
    "servers of the fleet": (
        "analyzer/usage/test_command_messages.py",
        "analyzer/usage/test_command_runs.py",
        "analyzer/usage/test_server.py",
    ),
    "servers of the dashboards": (
        "grafana/test_panel_values.py",
        "grafana/test_pictures.py",
        "grafana/test_queries.py",
        "grafana/test_queries_fleet.py",
    ),
    "torch": (
        "workloads/jobs/containers/test_images.py",
        "workloads/jobs/llm/test_common_ranks.py",
        "workloads/jobs/llm/test_decoding.py",
        "workloads/jobs/llm/test_decoding_texts.py",
        "workloads/jobs/llm/test_models.py",
        "workloads/jobs/llm/test_options.py",
        "workloads/jobs/test_llm_forward.py",
        "workloads/jobs/test_llm_generate.py",
        "workloads/jobs/test_llm_server_transformers.py",
        "workloads/jobs/test_llm_train.py",
        "workloads/jobs/test_resnet.py",
        "workloads/jobs/vision/test_training.py",
        "workloads/wattline/integrations/test_lightning.py",
        "workloads/wattline/integrations/test_transformers.py",
    ),
}
"""Files of tests that run in one worker, because they share a fixture or an import that takes
seconds.
"""
_FOLDER = Path(__file__).parent
_GROUPS = {f"{_FOLDER.name}/{name}": group for group, names in GROUPS.items() for name in names}
_RANKS = {_FOLDER / name: rank for rank, name in enumerate(LONGEST_FILES)}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run the longest files first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: _RANKS.get(item.path, len(_RANKS)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Return the scheduler of `--dist loadscope`, which keeps a group of files in one worker."""
    if config.getvalue("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]  # xdist has no types

    class _GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # likewise
        def _split_scope(self, nodeid):
            return _GROUPS.get(nodeid.partition("::")[0]) or super()._split_scope(nodeid)

    return _GroupScheduling(config, log)


def pytest_collection_finish():
    """Leave what collection created out of every garbage collection."""
    gc.collect()
    gc.freeze()
