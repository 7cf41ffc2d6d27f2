"""A monitoring tool of another distribution: the time, ten times a second."""

from __future__ import annotations

from cotenant.study.tools import MonitoringTool

ENTRY_POINTS = {"cotenant.monitoring_tools": {"acme-clock": "acme_monitoring_tool:CLOCK"}}

CLOCK = MonitoringTool(
    title="clock",
    command=lambda _: ("sh", "-c", "while :; do date; sleep 0.1; done"),
    is_ready=lambda run: (run.folder / "tool.out").stat().st_size > 0,
)
