"""Requests of a server, as it reports them."""

from __future__ import annotations

import time


def served(number, *, seconds=1.0, ago=0.0, tokens=(100, 20), **more):
    """Return a request that ended `ago` seconds ago."""
    ended_at = time.time() - ago
    return {
        "id": f"r-{number}",
        "started_at": ended_at - seconds,
        "first_token_at": ended_at - 0.8 * seconds,
        "ended_at": ended_at,
        "prompt_tokens": tokens[0],
        "generated_tokens": tokens[1],
        "labels": {"model": "llama", "user": f"u{number % 3 if isinstance(number, int) else 0}"},
        **more,
    }


def report(exporter, run_id, *requests):
    return exporter.post(f"/api/v1/runs/{run_id}/requests", {"requests": list(requests)})


def arrays(*requests):
    """Return requests as an array for each field."""
    labels = []
    for each in requests:
        if each["labels"] not in labels:
            labels.append(each["labels"])
    names = dict.fromkeys(name for each in requests for name in each if name != "labels")
    fields = {name: [each.get(name) for each in requests] for name in names}
    return {
        **fields,
        "labels": labels,
        "label_set": [labels.index(each["labels"]) for each in requests],
    }


def report_arrays(exporter, run_id, *requests, **more):
    return exporter.post(f"/api/v1/runs/{run_id}/requests", {"requests": arrays(*requests) | more})


def accepted(exporter, run_id, *requests):
    status, receipt = report(exporter, run_id, *requests)
    assert status == 202, receipt
    return receipt
