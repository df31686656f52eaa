"""Identity of owners and their runs."""

import re
from typing import Literal, get_args

from wattline.contract.api import MAX_ID_LENGTH

OwnerKind = Literal["slurm", "kubernetes", "container", "service", "user"]
"""Kind of the owner of a discovered run; an earlier one takes precedence over a later one."""
OWNER_KINDS: tuple[OwnerKind, ...] = get_args(OwnerKind)


def owner_run_id(kind: str, name: str, number: str) -> str:
    """Return KIND-NAME-NUMBER, with the characters that a run id can have and the name cut to its
    length.
    """
    valid = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    return f"{kind}-{valid[: MAX_ID_LENGTH - len(kind) - len(number) - 2]}-{number}"
