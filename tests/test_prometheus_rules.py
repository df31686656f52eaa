"""Recording rules of deploy/prometheus: accepted, tested, and consistent with the contract."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests import servers
from wattline.contract import metrics as m
from wattline.contract.work import SHARE_POLICY

FOLDER = Path(__file__).parents[1] / "deploy" / "prometheus"
RULES = FOLDER / "wattline.rules.yml"
TESTS = ("wattline.rules.test.yml", "wattline.rules.edges.test.yml")


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("promtool", ["check", "rules", RULES.name]),
        ("promtool", ["test", "rules", *TESTS]),
        ("vmalert", ["-dryRun", f"-rule={RULES.name}"]),
    ],
)
def test_recording_rules_pass_promtool_and_vmalert(program, arguments):
    call = [servers.require(program), *arguments]
    completed = subprocess.run(
        call, cwd=FOLDER, capture_output=True, text=True, timeout=120, check=False
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_recording_rules_have_equal_results_in_victoria_metrics(tmp_path):
    """Run promtool's cases with vmalert-tool, whose file has other key names."""
    tool = shutil.which("vmalert-tool")
    if tool is None:
        pytest.skip("vmalert-tool is not installed: Debian has it from 13 on, in victoria-metrics")
    shutil.copy(RULES, tmp_path)
    for name in TESTS:
        (tmp_path / name).write_text(
            (FOLDER / name).read_text().replace("promql_expr_test:", "metricsql_expr_test:")
        )
    call = [tool, "unittest", "--disableAlertgroupLabel", *(f"--files={name}" for name in TESTS)]
    completed = subprocess.run(
        call, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )

    assert completed.returncode == 0, completed.stdout + completed.stderr


def test_recording_rules_use_existing_metrics_and_policies():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    texts = " ".join(rule["expr"] for group in groups for rule in group["rules"])
    recorded = {rule["record"] for group in groups for rule in group["rules"]}
    metrics = {metric.name for metric in (*m.METRICS, m.REQUEST_ENERGY_BUCKET)}

    assert set(re.findall(r"(?<![\w:])wattline_\w+(?![\w:])", texts)) <= metrics
    assert set(re.findall(r"\w+:wattline_\w+:\w+", texts)) <= recorded
    assert set(re.findall(r'policy="(\w*)"', texts)) == {SHARE_POLICY}


def test_recording_rules_of_the_fleet_have_five_minute_interval():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    intervals = {
        rule["record"]: group["interval"]
        for group in groups
        for rule in group["rules"]
        if rule["record"].endswith("5m")
    }

    assert len(intervals) > 5
    assert set(intervals.values()) == {"5m"}
