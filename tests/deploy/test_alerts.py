"""Alerts of deploy/prometheus: accepted by the servers, tested in both states, and documented."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.servers import require
from wattline.contract import metrics as m

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
RULES = "wattline.alerts.yml"
TESTS = ("wattline.alerts.test.yml", "wattline.alerts.days.test.yml")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / RULES).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", RULES),
        ("promtool", "test", "rules", *TESTS),
        ("vmalert", "-dryRun", f"-rule={RULES}"),
    ],
    ids=" ".join,
)
def test_alert_cases_pass_promtool_and_vmalert(command: tuple[str, ...]) -> None:
    program, *arguments = command
    completed = subprocess.run(
        [require(program), *arguments],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_alert_has_a_firing_and_a_silent_case() -> None:
    tests = [
        test for name in TESTS for test in yaml.safe_load((FOLDER / name).read_text())["tests"]
    ]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule["alert"] for rule in alerts()}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names


def test_alert_links_to_its_runbook_entry() -> None:
    headings = re.findall(r"^## (\w+)$", (FOLDER / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert (
            rule["annotations"]["runbook_url"]
            == f"deploy/prometheus/runbook.md#{rule['alert'].lower()}"
        )


def test_alert_links_to_a_dashboard_with_its_variables() -> None:
    files = (FOLDER.parents[1] / "grafana" / "dashboards").glob("*.json")
    boards = {board["uid"]: board for board in map(json.loads, map(Path.read_text, files))}
    for rule in alerts():
        address = urlsplit(rule["annotations"]["dashboard_url"])
        board = boards[address.path.removeprefix("/d/")]
        variables = {f"var-{variable['name']}" for variable in board["templating"]["list"]}
        assert set(parse_qs(address.query)) <= variables


def test_alert_has_a_summary_and_a_description() -> None:
    for rule in alerts():
        assert set(rule["annotations"]) == {
            "summary",
            "description",
            "dashboard_url",
            "runbook_url",
        }
        assert rule["annotations"]["description"].endswith(".")


def test_alert_links_take_addresses_by_the_documented_command(tmp_path: Path) -> None:
    readme = (FOLDER / "README.md").read_text()
    (command,) = re.findall(r"^(sed .*?)^```", readme, re.MULTILINE | re.DOTALL)
    shutil.copy(FOLDER / RULES, tmp_path)
    subprocess.run(["sh", "-ec", command], cwd=tmp_path, check=True, timeout=10)
    for rule in yaml.safe_load((tmp_path / RULES).read_text())["groups"][0]["rules"]:
        assert rule["annotations"]["dashboard_url"].startswith(
            "https://grafana.example.org/d/wattline-"
        )
        assert rule["annotations"]["runbook_url"].startswith(
            "https://git.example.org/wattline/blob/main/deploy/"
        )


def test_alerts_use_existing_metrics() -> None:
    known = {metric.name for metric in m.METRICS}
    recorded = set(re.findall(r"record: (\S+)", (FOLDER / "wattline.rules.yml").read_text()))
    for rule in alerts():
        queried = set(re.findall(r"(?<![\w:])wattline_\w+(?![\w:])", rule["expr"]))
        assert queried <= known
        assert set(re.findall(r"\w+:wattline_\w+:\w+", rule["expr"])) <= recorded
