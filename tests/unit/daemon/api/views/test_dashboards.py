"""The dashboard and the alerts in `share` use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cotenant.core.job import ResourceUsage
from cotenant.daemon.api.views.metrics import _GPU_GAUGES, MetricsSnapshot, PrometheusCollector

SHARE = Path(__file__).parents[5] / "share"
USAGE = ResourceUsage(gpu_s=1.0, gpu_share_s=1.0, byte_s=1.0, sm_s=1.0, sm_known_s=1.0, energy_j=1.0, metered_s=1.0)
GPU = {
    **{key: 1 for _, key, _ in _GPU_GAUGES},
    "energy_j": 1,
    "index": 0,
    "uuid": "GPU-0",
    "mig_profile": None,
    "residents": [{"job_id": 1, "name": "n", "promised_bytes": 1, "observed_bytes": 1}],
}
PICTURE = MetricsSnapshot(
    info={"version": "1", "policy": "p", "backend": "b"},
    jobs={"RUNNING": 1, "OOM": 1},
    gpus=[GPU],
    oldest_wait_s=1.0,
    journal_ok=True,
    jobs_running=[{"job": "1", "name": "n", "user": "u", "usage": USAGE, "slowdown": 1.0, "idle_s": 1.0}],
    users={"u": USAGE},
)


def samples():
    """Labels of each series by its name."""
    text = PrometheusCollector(lambda: PICTURE).text().decode()
    return {
        sample.name: set(sample.labels) for family in text_string_to_metric_families(text) for sample in family.samples
    }


def expressions():
    dashboard = json.loads((SHARE / "grafana" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"], target["legendFormat"]
    for name, expression in re.findall(
        r"alert: (\w+)\n\s+expr: (.*)", (SHARE / "prometheus" / "alerts.yml").read_text()
    ):
        yield name, expression, ""


@pytest.mark.parametrize(("title", "expression", "legend"), list(expressions()))
def test_every_expression_names_series_and_labels_that_exist(title, expression, legend):
    known = samples()
    named = set(re.findall(r"\bcotenant_\w+", expression))
    assert named
    assert named <= known.keys(), title
    labels = set.union(*(known[name] for name in named))
    assert set(re.findall(r"{{\s*(\w+)\s*}}", legend)) <= labels
    assert set(re.findall(r"(?:by \(|\{)(\w+)", expression)) <= labels
    states = re.findall(r'state=~?"([^"]+)"', expression)
    assert {state for group in states for state in group.split("|")} <= {"running", "pending", "held", "oom"}


def test_the_alerts_name_labels_that_their_series_have():
    known = samples()
    alerts = (SHARE / "prometheus" / "alerts.yml").read_text().split("- alert:")[1:]
    for alert in alerts:
        labels = set.union(*(known[name] for name in re.findall(r"\bcotenant_\w+", alert)))
        assert set(re.findall(r"\$labels\.(\w+)", alert)) <= labels
        assert alert.count("summary:") == 1
    assert len(alerts) == 6


def test_a_metric_that_is_renamed_is_noticed():
    without = replace(PICTURE, users={})
    text = PrometheusCollector(lambda: without).text().decode()
    assert "cotenant_user_gpu_seconds_total" not in {
        sample.name for family in text_string_to_metric_families(text) for sample in family.samples
    }
