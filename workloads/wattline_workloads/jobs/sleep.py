"""Sleep, to measure the idle power of the node."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence

from wattline.client import barrier
from wattline.client.messages import message_line
from wattline_workloads.jobs.base import JobParser, job_parser, positive_seconds
from wattline_workloads.runner.signals import unwind_on_signal


def parser() -> JobParser:
    options = job_parser("sleep", __doc__)
    options.add_argument(
        "--duration",
        type=positive_seconds,
        default=10.0,
        metavar="SECONDS",
        help="duration; default: 10",
    )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    with unwind_on_signal():
        try:
            barrier.await_all_tenants(os.environ)
        except barrier.BarrierError as error:
            sys.exit(message_line(f"sleep: {error}"))
        time.sleep(options.duration)
    return 0


if __name__ == "__main__":
    sys.exit(main())
