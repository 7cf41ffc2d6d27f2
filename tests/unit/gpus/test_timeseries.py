"""The past of the GPUs: seconds for minutes, minutes for days, bounded, kept over a restart."""

from __future__ import annotations

import math

import pytest

from cotenant.core.gpu import GpuSample
from cotenant.gpus.timeseries import MINUTE_S, GpuTimeSeries


def read(history, at_s, uuid="GPU-0", **values):
    history.add({uuid: GpuSample(at_s=at_s, **{"used_bytes": 10, **values})})


def points(history, back_s, now_s, uuid="GPU-0"):
    return history.since(now_s - back_s, now_s)[uuid]


def test_seconds_are_points_and_the_oldest_are_dropped():
    history = GpuTimeSeries(fine_points=5)
    for second in range(8):
        read(history, 100.0 + second, smact=second / 10, power_w=50.0, energy_j=1000.0 + 50 * second)
    found = points(history, 4, 107.0)
    assert [point.smact for point in found] == [0.4, 0.5, 0.6, 0.7]
    assert [point.energy_j for point in found] == [50.0] * 4
    assert [(point.at_s, point.seconds) for point in found[-1:]] == [(106.0, 1.0)]
    assert [point.smact for point in points(history, 5, 107.0)] == [0.3, 0.4, 0.5, 0.6, 0.7], "no more than kept"


def test_samples_in_quick_succession_share_a_point():
    history = GpuTimeSeries(fine_points=5)
    for tenth in range(40):
        read(history, 100.0 + tenth / 10, smact=0.1 * (tenth % 2), energy_j=10.0 * tenth)
    found = points(history, 5, 104.0)
    assert found[0].at_s <= 101.0
    assert [point.energy_j for point in found[1:]] == pytest.approx([100.0] * (len(found) - 1)), "nothing falls between"
    assert found[1].smact == pytest.approx(0.05, abs=0.01), "and they are means"


def test_a_minute_is_the_mean_of_its_samples():
    history = GpuTimeSeries(fine_points=2)
    for second in range(0, 180, 30):
        read(
            history, 600.0 + second, used_bytes=100 + second, smact=second / 180, power_w=100.0, energy_j=100.0 * second
        )
    first, second = points(history, 600, 800.0)
    assert (first.at_s, first.seconds) == (600.0, MINUTE_S)
    assert (first.used_bytes, first.max_bytes, first.smact) == (115.0, 130.0, pytest.approx(1 / 12))
    assert (second.at_s, second.power_w, second.energy_j) == (660.0, 100.0, 6000.0)


def test_unread_values_are_none_and_nan_counts_as_unread():
    history = GpuTimeSeries(fine_points=2)
    for second, smact in enumerate((None, math.nan, 0.4)):
        read(history, 600.0 + second, used_bytes=None, smact=smact, power_w=-3.0)
    read(history, 660.0)
    (minute,) = points(history, 60, 661.0)
    assert (minute.smact, minute.used_bytes, minute.max_bytes, minute.power_w) == (0.4, None, None, None)
    assert minute.energy_j is None


def test_an_energy_counter_that_is_reset_adds_nothing():
    history = GpuTimeSeries()
    for second, joules in enumerate((500.0, 600.0, 0.0, 50.0, None, 80.0)):
        read(history, 600.0 + second, energy_j=joules)
    assert [point.energy_j for point in points(history, 10, 606.0)] == [100.0, None, 50.0, None, 30.0]


def test_a_missing_gpu_leaves_a_gap_and_a_late_sample_is_ignored():
    history = GpuTimeSeries()
    read(history, 600.0)
    read(history, 590.0)
    read(history, 650.0)
    assert [(point.at_s, point.seconds) for point in points(history, 100, 650.0)] == [(600.0, 50.0)]


def minutes_of(history, now_s):
    return [round(point.at_s / MINUTE_S) for point in points(history, 10**6, now_s)]


def test_minutes_survive_a_restart(tmp_path):
    file = tmp_path / "past.jsonl"
    first = GpuTimeSeries(file)
    for minute in range(4):
        read(first, 600.0 + 60 * minute, smact=0.1 * minute)
    file.write_text(file.read_text() + '["GPU-0", 840.0, 60.0, nul')
    again = GpuTimeSeries(file)
    assert minutes_of(again, 900.0) == [10, 11, 12]
    assert points(again, 10**6, 900.0) == points(first, 10**6, 900.0)
    read(again, 900.0)
    read(again, 960.0)
    assert minutes_of(GpuTimeSeries(file), 1000.0)[:3] == [10, 11, 12]


def test_the_file_is_bounded(tmp_path):
    file = tmp_path / "past.jsonl"
    history = GpuTimeSeries(file, minute_points=5)
    for minute in range(100):
        read(history, 60.0 * minute)
    assert len(file.read_text().splitlines()) <= 11
    assert minutes_of(history, 6000.0) == [94, 95, 96, 97, 98]
    assert minutes_of(GpuTimeSeries(file, minute_points=5), 6000.0) == [94, 95, 96, 97, 98]


@pytest.mark.parametrize("content", ["", "{}\n", "[]\n[1, 2]\n", '["GPU-0", "x"]\n', "\0\0\n"])
def test_lines_that_are_no_points_are_skipped(tmp_path, content):
    file = tmp_path / "past.jsonl"
    file.write_text(content)
    assert GpuTimeSeries(file).since(0.0, 10.0) == {}


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path, caplog):
    history = GpuTimeSeries(tmp_path / "no" / "past.jsonl")
    for minute in range(4):
        read(history, 60.0 * minute)
    assert len(caplog.records) == 1
    assert minutes_of(history, 600.0) == [0, 1, 2]


def test_lines_of_the_first_version_are_read(tmp_path):
    file = tmp_path / "past.jsonl"
    file.write_text('["GPU-0", 840.0, 60.0, 100.0, 0.5, null, null, 0.9, 200.0, 110.0, 12000.0]\n')
    (point,) = GpuTimeSeries(file).since(0.0, 100_000.0)["GPU-0"]
    assert (point.smact, point.max_bytes, point.energy_j) == (0.5, 110.0, 12000.0)
    assert (point.gract, point.pcie_rx_bytes_s) == (None, None)
