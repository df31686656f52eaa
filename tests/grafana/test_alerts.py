"""Expressions of the alerts about GPUs and their holders on a real Prometheus and
VictoriaMetrics.
"""

import pytest
import yaml

from tests.grafana.cluster import END_S
from tests.grafana.query import ask
from tests.grafana.stores import RULES

ALERTS = {
    rule["alert"]: rule
    for group in yaml.safe_load(RULES.with_name("wattline.alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
B_GPU = {"instance": "b:9847", "gpu": "0", "uuid": "GPU-00000000"}


@pytest.mark.parametrize(
    ("alert", "expected"),
    [
        ("WattlineXid", [(B_GPU | {"xid": "79"}, 630)]),  # seconds since its only error
        ("WattlineEccUncorrected", []),
        ("WattlineCapLeft", [({"limit_watts": "500"}, 1)]),
        ("WattlineCarbonStale", []),
        ("WattlineThrottled", [({"instance": "b:9847", "reason": "hw_thermal_slowdown"}, 1)]),
        (
            "WattlineHeldIdle",
            [
                ({"cluster": "east", "namespace": "ml", "pod": "notebook-2"}, 1),
                ({"run_id": "notebook-1"}, 1),
            ],
        ),
    ],
)
def test_alert_expression_has_equal_results_on_both_servers(server, alert, expected):
    answers = ask(server, {"expr": ALERTS[alert]["expr"], "instant": True}, END_S + 30)

    assert sorted((sorted(one.labels.items()), one.value) for one in answers) == sorted(
        (sorted(labels.items()), value) for labels, value in expected
    )
