"""Entry point of the scripts in deploy/slurm: `python -m wattline_workloads.slurm
prolog|epilog|epilog-slurmctld`.

Only the standard library is imported, so that it starts fast. A failure is one line on stderr. The
exit code is 0, since Slurm drains a node whose prolog fails.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

from wattline.client.api import Api, ExporterError
from wattline_workloads.slurm.job import PrologJob, SlurmError

_TIMEOUT_S = 2.0
_EPILOG_TIMEOUT_S = 5.0


def main() -> None:
    """Run the script of that name."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    log = partial(_log, name, os.environ.get("SLURM_JOB_ID", "?"))
    try:
        _run(name, log)
    except (ExporterError, SlurmError) as error:
        log(f"failed: {error}")
    except Exception as error:  # noqa: BLE001  # a bug must not drain a node either
        log(f"failed: {type(error).__name__}: {error}")


def _run(name: str, log: partial[None]) -> None:
    job = PrologJob.of(os.environ)
    match name:
        case "prolog":
            from wattline_workloads.slurm.node import begin_run

            log(
                f"run {begin_run(job, Api.configured(os.environ, timeout_s=_TIMEOUT_S), log)} began"
            )
        case "epilog":
            from wattline_workloads.slurm.node import end_run, restore_power_limits

            try:
                run = end_run(job, Api.configured(os.environ, timeout_s=_EPILOG_TIMEOUT_S), log)
                log(
                    f"run {run.run_id} ended: {run.outcome}" if run else "no run of the job is open"
                )
            finally:
                restore_power_limits(log)
        case "epilog-slurmctld":
            from wattline_workloads.slurm.accounting import write_energy

            comment = write_energy(job, log)
            log(comment or "nothing written")
        case _:
            raise SlurmError(f"no script {name!r}; expected prolog, epilog or epilog-slurmctld")


def _log(name: str, job: str, text: str) -> None:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{moment} wattline {name} job {job}: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
