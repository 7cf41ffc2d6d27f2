"""Windows of a trace: from where, on how many servers, and what their rows say."""

from __future__ import annotations

from benchmarks.scheduler.windows import GPUS, JOBS, MAX_SERVERS, Window, drawn, outcome_of, row
from cotenant.sim import cluster
from cotenant.sim.metrics import metrics_of
from cotenant.sim.simulate import simulate
from worlds import a_profile, a_trace

HOUR_S = 3600.0


def a_month(*, gangs=10, gpus=4, busy_gpus=40):
    """Jobs of an hour, every tenth or so a gang, that keep so many GPUs busy."""
    every_s = HOUR_S * (1 + (gpus - 1) / gangs) / busy_gpus
    sizes = [gpus if number % gangs == 0 else 1 for number in range(2 * JOBS)]
    return a_trace(*[(number * every_s, HOUR_S, size, None) for number, size in enumerate(sizes)])


def test_a_window_starts_at_zero_and_has_servers_for_its_load():
    window = drawn(a_month(), seed=3)
    assert window is not None
    assert (len(window.trace), window.trace.submit_s[0]) == (JOBS, 0.0)
    assert len(window.gpus) == round(40 / 1.2 / GPUS) * GPUS
    assert all(profile.peak_bytes for profile in window.trace.profiles)
    assert drawn(a_month(), seed=4).trace.notes != window.trace.notes


def test_windows_with_few_gangs_or_too_much_work_are_left_out():
    assert drawn(a_month(gangs=100), seed=3) is None
    assert drawn(a_month(busy_gpus=2 * MAX_SERVERS * GPUS), seed=3) is None


def test_a_row_counts_gangs_apart():
    small, large = a_profile("small", gib=3, smact=0.01), a_profile("large", gib=30, smact=0.9)
    trace = a_trace((0.0, 600.0, 2, large), *[(1.0, 600.0, 1, small)] * 4)
    gpus = cluster.parse("2xA100-40GB")
    base = metrics_of(simulate(trace, gpus, "exclusive"))
    outcome = outcome_of(Window(trace, gpus), base, 0.0)
    cells = row([outcome]).split(" | ")
    assert cells[4:] == ["1 of 1", "0.0", "0"]
    assert outcome.is_gang == [True, False, False, False, False]
    assert cells[0].startswith("-"), "four small jobs share two GPUs after the gang"
