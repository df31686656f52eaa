"""Tables of the page of evidence, from the stored results of all studies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.calibration.coverage import STATED
from tests.calibration.devices import COUNTS
from tests.calibration.windows import RESULTS as WINDOWS
from tests.exam.cases import CASES as EXAM_CASES
from tests.exam.registry import METERS
from tests.exam.scores import ALL
from tests.fault_trials.cases import CASES as FAULTS
from tests.fault_trials.kills import KEPT
from tests.fault_trials.table import HEALTHY
from tests.laboratory.faults import CODES
from tests.laboratory.results import (
    ENOUGH,
    Row,
    file_of,
    markdown_table,
    measured_at,
    percent,
    stored_rows,
)

Study = tuple[str, str, Callable[[Sequence[Row]], str]]


def _least(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Return the number of classes below 93 %, and the least coverage with its class."""
    covered = [row["coverage"] for row in rows]
    shares = [one[STATED] if isinstance(one, list) else one for one in covered]
    least = min(range(len(rows)), key=lambda number: shares[number])
    name = ", ".join(str(rows[least][one]) for one in names)
    below = sum(share < ENOUGH for share in shares)
    return f"{below} of {len(rows)} classes below 93 %; least: {percent(shares[least])} of *{name}*"


def _of_faults(rows: Sequence[Row]) -> str:
    outside = sum(row["outside"] for row in rows)
    silent = sum(row["silent"] for row in rows)
    kinds = sum(row["case"] != HEALTHY for row in rows)
    return f"{kinds} kinds; {outside} runs outside of their interval, {silent} without a note"


def _of_kills(rows: Sequence[Row]) -> str:
    lost = sum(row[key] for row in rows for key in KEPT)
    energies = sum(row["energies"] for row in rows)
    outside = sum(row["outside"] for row in rows)
    return f"{lost} losses of acknowledged facts; {outside} of {energies} energies outside"


def _of_examination(rows: Sequence[Row]) -> str:
    meters = [row for row in rows if row["case"] == ALL]
    (ours,) = [row for row in meters if row["meter"] == "wattline"]
    best = max((row for row in meters if row is not ours), key=lambda row: float(row["points"]))
    return (
        f"{ours['points']:.0f} of 100 points, {percent(ours['wrong'])} wrong without a warning; "
        f"best of {len(meters) - 1} other meters: {best['meter']}, {best['points']:.0f} points, "
        f"{percent(best['wrong'])}"
    )


def _of_shares(rows: Sequence[Row]) -> str:
    return f"95 % of the errors are below {percent(max(row['p95'] for row in rows))} in each class"


def _of_devices(rows: Sequence[Row]) -> str:
    """Return the least coverage of added half-widths over 1, 2 and 8 GPUs."""
    added = [{**row, "coverage": min(row[f"linear_{gpus}"][0] for gpus in COUNTS)} for row in rows]
    return _least(added, ["period", "one_job", "in_phase"])


STUDIES: dict[str, Study] = {
    "intervals": (
        "Does each kind of interval contain the true value?",
        "make calibrate",
        lambda rows: _least(rows, ["interval"]),
    ),
    "classes": (
        "… by load, sensor and edges of the run?",
        "python -m tests.laboratory.classes",
        lambda rows: _least(rows, ["load", "sensor", "edges"]),
    ),
    "waves": (
        "… by updates of the sensors, waves and bursts, length in seconds?",
        "python -m tests.laboratory.waves",
        lambda rows: _least(rows, ["updates", "load", "seconds"]),
    ),
    "wave_figures": (
        "… of phases, emissions, ranges and samples, by period of a wave?",
        "python -m tests.laboratory.wave_figures",
        lambda rows: _least(rows, ["figure", "period_s"]),
    ),
    "windows": (
        "… by windows of the powers, period of the load in updates, length in seconds?",
        "python -m tests.calibration.windows",
        lambda rows: _least(rows, ["sensor", "period", "seconds"]),
    ),
    "devices": (
        "… of the sum over the GPUs of one run?",
        "python -m tests.calibration.devices --sensor wave",
        _of_devices,
    ),
    "margins": (
        "… by class of load, run and update?",
        "python -m tests.calibration.margins",
        lambda rows: _least(rows, ["sensor", "class"]),
    ),
    "shares": (
        "How large is the error of an attributed share, which has no interval?",
        "python -m tests.calibration.shares",
        _of_shares,
    ),
    "fault_trials": (
        "Does the interval contain the true energy when a sensor or the driver fails?",
        "make faults N=5",
        _of_faults,
    ),
    "kills": (
        "Is anything lost when processes are killed or stopped?",
        "python -m tests.fault_trials.kills",
        _of_kills,
    ),
    "examination": (
        "How do other meters do on the same loads and faults?",
        "make exam METER=NAME",
        _of_examination,
    ),
}
"""Question, command and summary of each study."""


def _rows_of(study: str) -> list[Row]:
    return stored_rows(WINDOWS if study == "windows" else file_of(study))


def study_table() -> str:
    """Return a row for each study: question, runs, result, command, and measurement."""
    rows = []
    for name, (question, command, summarize) in STUDIES.items():
        found = _rows_of(name)
        # the row of all classes has the runs of the others
        runs = sum(row["runs"] for row in found if ALL not in {row.get("case"), row.get("class")})
        cells = [question, f"{runs:,}", summarize(found), f"`{command}`", measured_at(found)]
        rows.append(cells)
    header = ["question", "runs", "result", "command", "measured on (commit)"]
    return markdown_table(header, rows, text=len(header))


def _group(fault: str) -> str:
    """Return the group of a kind of fault, by its name."""
    if fault.startswith("no counter: "):
        return "faults of a GPU without an energy counter"
    if fault.startswith(("counter", "no counter")):
        return "energy counter: jumps, falls, wrong slopes, noise, delays, missing values"
    if fault.startswith(("power", "field")):
        return "power and fields: stuck, impossible or missing values, other types"
    if fault.split(maxsplit=1)[0] in CODES or fault.startswith("all calls"):
        return "NVML errors of calls"
    return "driver, worker process and device: hangs, ends, unloads, unplugged GPUs"


def fault_table() -> str:
    """Return the results of the fault trials by group of faults."""
    groups: dict[str, list[Row]] = {}
    for row in stored_rows(file_of("fault_trials")):
        name = row["case"] if row["case"] in {HEALTHY, "no fault"} else _group(row["case"])
        groups.setdefault(name, []).append(row)
    rows = [
        [
            name,
            str(len(group)),
            str(sum(row["runs"] for row in group)),
            percent(max(abs(row["worst"]) for row in group), 2),
            percent(max(row["half_width"] for row in group), 2),
            *(str(sum(row[key] for row in group)) for key in ("declared", "outside", "silent")),
        ]
        for name, group in sorted(groups.items())
    ]
    header = ["faults", "kinds", "runs", "largest error", "widest half-width", "with a note"]
    return markdown_table([*header, "outside", "silent"], rows)


def unmeasured() -> str:
    """Return a list of the cases of the examination and of the faults that have no result."""
    exam = {(row["meter"], row["case"]) for row in stored_rows(file_of("examination"))}
    trials = {row["case"] for row in stored_rows(file_of("fault_trials"))}
    missing = [
        *(f"fault trial *{name}*" for name in FAULTS if name not in trials),
        *(
            f"examination of {meter} in *{case}*"
            for meter in METERS
            for case in EXAM_CASES
            if (meter, case) not in exam
        ),
    ]
    return "\n".join(f"- {one}" for one in missing) or (
        "Each defined fault trial and each case of the examination has a result."
    )
