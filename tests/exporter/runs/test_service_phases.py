import requests

from tests.daemon import begin, end
from tests.exporter.api import assert_problem
from wattline.contract.api import MAX_RECENT_PHASES


def test_phase_changes_too_often_are_rejected_and_noted(exporter):
    run_id = begin(exporter)["run_id"]
    url = f"{exporter.url}/api/v1/runs/{run_id}/phase"
    with requests.Session() as session:
        answers = [
            session.post(url, json={"name": "ab"[n % 2]}, timeout=30)
            for n in range(MAX_RECENT_PHASES + 30)
        ]
    late = [answer for answer in answers if answer.status_code != 200]

    assert len(answers) - len(late) >= MAX_RECENT_PHASES
    assert_problem((late[0].status_code, late[0].json()), 429, "phase", str(MAX_RECENT_PHASES))
    assert late[0].headers["Retry-After"] == "1"
    assert late[0].headers["Content-Type"].startswith("application/problem+json")
    run = end(exporter, run_id)
    assert any(
        "the phases are incomplete: the run changed its phase more than" in note
        for note in run["notes"]
    )
    assert {phase["name"] for phase in run["phases"]} == {"a", "b"}


def test_phase_repeated_name_is_accepted_without_limit(exporter):
    run_id = begin(exporter)["run_id"]
    for _ in range(MAX_RECENT_PHASES + 10):
        assert exporter.post(f"/api/v1/runs/{run_id}/phase", {"name": "train"})[0] == 200
    run = end(exporter, run_id)

    assert run["notes"] == []
    assert [phase["name"] for phase in run["phases"]] == ["train"]
