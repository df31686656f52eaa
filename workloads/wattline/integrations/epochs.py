"""Phases of a training: one for each of the first epochs, one for the others, and one for
evaluation.
"""

from __future__ import annotations

EVALUATION = "evaluate"
LATER_EPOCHS = "epoch-later"
_MOST_EPOCHS = 12
"""Epochs with a phase; a run has at most 16 phases, and some remain for the program."""


def epoch_phase(number: int) -> str:
    """Return the phase of an epoch, numbered from 1."""
    return f"epoch-{number}" if number <= _MOST_EPOCHS else LATER_EPOCHS
