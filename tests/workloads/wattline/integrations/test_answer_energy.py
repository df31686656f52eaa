"""Energies for answers, with an exporter that answers, hangs, fails, or has none yet."""

from __future__ import annotations

import asyncio
import threading

import pytest

from tests.polling import eventually
from wattline.client.api import RejectedRequestError, UnreachableError
from wattline.integrations.answer_energy import AnswerEnergy

LONG_S = 3600.0
FOUND = {"id": "a", "state": "provisional", "energy_joules": 2.0, "energy_uncertainty_joules": 1.0}


class Requests:
    """Requests of a server; `answer` is the exporter's answer, or the error that it causes."""

    def __init__(self, answer, run_id="run") -> None:
        self.answer, self.run_id = answer, run_id
        self.responds = threading.Event()
        self.responds.set()
        self.asked, self.flushed = [], 0

    def flush(self, _) -> None:
        self.flushed += 1
        self.responds.wait()

    def energy(self, request_id):
        self.asked.append(request_id)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def hanging():
    requests = Requests(FOUND)
    requests.responds.clear()
    yield requests
    requests.responds.set()


def energies_of(energies, *request_ids):
    async def ask():
        return await asyncio.gather(*map(energies.of, request_ids))

    return asyncio.run(ask())


def test_energies_of_answers_at_once_follow_one_report():
    requests = Requests(FOUND)
    ids = [f"r-{number}" for number in range(100)]

    assert energies_of(AnswerEnergy(requests, LONG_S), *ids) == [FOUND] * 100
    assert sorted(requests.asked) == sorted(ids)
    assert requests.flushed <= 100


def test_answers_at_once_with_hanging_exporter_have_no_energy(hanging):
    """Each answer has its own time limit: none of them waits for the others."""
    assert energies_of(AnswerEnergy(hanging, 0.05), *"abcdefghij") == [None] * 10
    assert hanging.asked == []


def test_answers_after_a_hang_do_not_wait_until_the_exporter_answers(hanging):
    energies = AnswerEnergy(hanging, 0.05, 0.01)
    assert energies_of(energies, "first") == [None]
    assert hanging.flushed == 1

    assert energies_of(energies, "second") == [None]
    assert hanging.flushed == 1
    hanging.responds.set()
    eventually(lambda: "first" in hanging.asked, "the thread asks again")
    eventually(lambda: energies_of(energies, "third") == [FOUND], "an energy")
    assert "second" not in hanging.asked


def test_answers_after_a_failure_do_not_ask():
    requests = Requests(UnreachableError("cannot reach an exporter"))
    energies = AnswerEnergy(requests, LONG_S, LONG_S)

    assert energies_of(energies, "first") == [None]
    assert energies_of(energies, "second") == [None]
    assert requests.asked == ["first"]


def test_answers_at_once_with_failing_exporter_ask_once():
    requests = Requests(UnreachableError("cannot reach an exporter"))

    assert energies_of(AnswerEnergy(requests, LONG_S, LONG_S), *"abcdefghij") == [None] * 10
    assert len(requests.asked) == 1


def test_pending_energies_are_not_waited_for():
    requests = Requests({"id": "first", "state": "pending", "notes": []})
    energies = AnswerEnergy(requests, LONG_S, LONG_S, LONG_S)

    assert energies_of(energies, "first") == [None]
    assert energies_of(energies, *"abcdefghij") == [None] * 10
    assert requests.asked == ["first"]


def test_unknown_request_leaves_the_others_their_energy():
    requests = Requests(RejectedRequestError(404, "there is no request first"))
    energies = AnswerEnergy(requests, LONG_S, LONG_S)
    assert energies_of(energies, "first") == [None]
    requests.answer = FOUND

    assert energies_of(energies, "second") == [FOUND]


def test_answers_before_the_run_is_known_do_not_ask():
    requests = Requests(FOUND, run_id=None)

    assert energies_of(AnswerEnergy(requests, LONG_S), "first") == [None]
    assert requests.flushed == 0
