import pytest

from wattline_workloads.jobs.containers import score as container_score


def test_parse_score_time_and_numbers_are_results():
    score = container_score.parse_score(
        b"time: 245.6\nf1: 1e-3\nname: stemdl\nok: true\nbad: .nan\n2nd-loss: 4\n", "m.yml"
    )

    assert score == {"time": 245.6, "f1": 0.001, "_2nd_loss": 4.0}
    assert container_score.score_results(score) == {
        "score_seconds": 245.6,
        "f1": 0.001,
        "_2nd_loss": 4.0,
    }


@pytest.mark.parametrize("text", [b"time: [", b"\xff\xfe\x00", b"just text", b""])
def test_parse_score_invalid_file_logs_and_is_empty(text, capsys):
    assert container_score.parse_score(text, "m.yml") == {}
    assert "m.yml" in capsys.readouterr().err
