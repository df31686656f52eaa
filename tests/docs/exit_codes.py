"""Exit codes of the three programs."""

from __future__ import annotations

EXIT_CODES: dict[str, dict[int | str, str]] = {
    "exporter": {
        0: "Success. `exporter serve` stopped after SIGTERM, SIGINT or, with `--exit-when-idle`, "
        "after its last run.",
        1: "Failure, such as an address in use or a state folder that is not writable. `exporter "
        "check`: no source of "
        "energy works.",
        2: "Usage error: an unknown option, or a value that is not valid.",
        78: "The state folder is of another version of Wattline; a restart does not help.",
        130: "Ctrl-C during a command other than `serve`.",
    },
    "workloads": {
        0: "Success.",
        1: "Failure: a run of a plan or sweep failed, a power limit was not restored, or the "
        "exporter refused the run.",
        2: "Usage error: an unknown option, an unknown job, or a plan that is not valid.",
        130: "Ctrl-C.",
        "other": "`workloads run` and `workloads job` return the exit code of the command, and 128 "
        "+ n if signal n "
        "killed it.",
    },
    "analyzer": {
        0: "Success. `analyzer watch` returns it also after Ctrl-C.",
        1: "Failure: the data is missing, incomplete or invalid, or the output cannot be written.",
        2: "Usage error: an unknown option, or a value that is not valid.",
        3: "`analyzer gate`: the energy increased.",
        4: "`analyzer gate`: too few repeats, or they differ too much.",
        130: "Ctrl-C.",
    },
}


def table(program: str) -> str:
    rows = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES[program].items()]
    return "\n".join(["| exit code | meaning |", "|---|---|", *rows])
