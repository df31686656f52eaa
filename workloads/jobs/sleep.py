"""Do nothing for a while: what the idle node draws."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from workloads import jobs


def parser() -> jobs.Options:
    options = jobs.options("sleep", __doc__)
    options.add_argument("--duration", type=jobs.seconds, default=10.0, metavar="SECONDS", help="default: 10")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    time.sleep(parser().parse_args(arguments).duration)
    return 0


if __name__ == "__main__":
    sys.exit(main())
