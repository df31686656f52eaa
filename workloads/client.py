"""Former name of `wattline`, an alias for one release."""

from wattline import Run, run

__all__ = ["Run", "run"]
