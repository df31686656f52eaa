"""Limits of the start of a run."""

import pytest

from wattline.contract.api import Gpus, RunGpu, begin_error


@pytest.mark.parametrize(
    ("workload", "labels", "run_id", "reason"),
    [
        ("train", {"model": "gpt2"}, "r-1", None),
        ("w" * 128, {"a" * 64: "v" * 128}, "r" * 64, None),
        ("", {}, "r", "workload: expected at least 1 character"),
        ("w" * 129, {}, "r", "workload: expected at most 128 characters"),
        (
            "a\x1b",
            {},
            "r",
            "workload: expected text without control characters (bidirectional ones included)",
        ),
        ("w", {}, "a/b", "run_id: expected 1 to 64 letters, digits, '.', '_' or '-', the first"),
        ("w", {}, "r\n", "run_id: expected 1 to 64 letters, digits, '.', '_' or '-', the first"),
        ("w", {f"l{i}": "" for i in range(17)}, "r", "labels: 17 labels, at most 16 are allowed"),
        ("w", {"a-b": ""}, "r", "labels.a-b: expected letters, digits and '_', the first one no"),
        ("w", {"a" * 65: ""}, "r", f"labels.{'a' * 65}: expected at most 64 characters"),
        ("w", {"a": "v" * 129}, "r", "labels.a: expected at most 128 characters"),
        ("w", {"a": "\0"}, "r", "labels.a: expected text without control characters"),
    ],
)
def test_begin_error_names_first_invalid_field(workload, labels, run_id, reason):
    found = begin_error(workload, labels, run_id)

    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)


def test_gpus_of_their_json_are_the_same():
    gpus = Gpus((RunGpu("0", "GPU-a", "H100", "hopper"), RunGpu("1", "GPU-b", "H100")), "/run/sim")

    assert Gpus.parse(gpus.to_json()) == gpus
