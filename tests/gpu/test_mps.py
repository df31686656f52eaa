"""NVIDIA's MPS daemon on a real GPU, if it starts; containers often forbid it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.gpu.gpu_under_test import ROOT, torch_cuda_problem
from wattline_workloads.mps import session as mps
from wattline_workloads.mps.daemon import MpsError

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

_CANNOT_START = re.compile(
    "cannot start MPS: (?!a daemon of user )"
)  # that daemon can and should be stopped
_CLIENT = """
import sys
import torch
product = torch.rand(256, 256, device="cuda") @ torch.rand(256, 256, device="cuda")
torch.cuda.synchronize()
print(float(product.sum()) > 0, flush=True)
sys.stdin.read()
"""


def test_mps_daemon_lists_cuda_processes_as_clients_only(gpu, tmp_path):
    if gpu.simulated or torch_cuda_problem():
        pytest.skip("MPS needs CUDA")
    try:
        with mps.run_mps_daemon(tmp_path, os.environ) as session:
            environment = {**os.environ, **session.environment}
            clients = [_start_process(_CLIENT, environment) for _ in range(2)]
            other = _start_process(
                "import sys; print(True, flush=True); sys.stdin.read()", environment
            )
            try:
                assert [process.stdout.readline() for process in (*clients, other)] == [
                    "True\n"
                ] * 3
                session.verify([client.pid for client in clients], within_s=60)
                with pytest.raises(MpsError, match=f"process {other.pid} is not an MPS client"):
                    session.verify([other.pid], within_s=2)
            finally:
                for process in (*clients, other):
                    process.communicate(timeout=60)
    except MpsError as error:
        if _CANNOT_START.match(str(error)):
            pytest.skip(str(error))
        raise

    assert session._daemon.processes() == []


def _start_process(script, environment):
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
