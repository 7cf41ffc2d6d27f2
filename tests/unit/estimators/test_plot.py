"""The plot of a replay."""

from __future__ import annotations

import sys

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.estimators.allocation_history import AllocationHistory, allocation_history
from cotenant.estimators.plot import _points, new_figure, save_plot
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.gpu_specs import gpu_spec
from traces import steps


def history(count=3):
    trace = steps(count=count)
    return allocation_history(make_replay_input(trace, gpu_spec("A100-40GB"), software_stack(trace.header)))


def test_without_matplotlib_the_error_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(UsageError) as caught:
        new_figure(tmp_path / "x.png")
    assert "cotenant[plots]" in caught.value.hint


def test_few_points_are_all_drawn_and_of_many_every_peak():
    assert _points(history()) == list(range(len(history().events)))
    count, peak = 50_000, 33_333
    column = [GiB if i == peak else 0 for i in range(count)]
    many = AllocationHistory(category_bytes={"activation": column}, reserved_bytes=column)
    chosen = _points(many)
    assert peak in chosen
    assert len(chosen) < 4100
    assert (chosen[0], chosen[-1]) == (0, count - 1)


class TestDrawing:
    """Needs matplotlib."""

    @pytest.fixture(autouse=True)
    def _matplotlib(self):
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")

    @pytest.mark.parametrize(("name", "start"), [("x.png", b"\x89PNG"), ("x.SVG", b"<?xml"), ("x.pdf", b"%PDF")])
    def test_writes_the_format_of_the_ending(self, tmp_path, name, start):
        save_plot(tmp_path / name, history(), title="a $title_with$ signs", usable_bytes=2 * GiB)
        assert (tmp_path / name).read_bytes().startswith(start)

    def test_names_categories_phases_and_peaks(self, tmp_path):
        save_plot(tmp_path / "x.svg", history(), title="train.py on a card", usable_bytes=2 * GiB)
        text = (tmp_path / "x.svg").read_text()
        for word in ("train.py on a card", "activation", "forward", "peak reserved", "memory of the GPU"):
            assert f"<!-- {word}" in text

    def test_a_limit_far_away_is_not_drawn(self, tmp_path):
        save_plot(tmp_path / "x.svg", history(), title="t", usable_bytes=40 * GiB)
        assert "memory of the GPU" not in (tmp_path / "x.svg").read_text()

    def test_refuses_an_unknown_ending(self, tmp_path):
        with pytest.raises(UsageError, match="no known format"):
            new_figure(tmp_path / "x.docx")

    def test_refuses_to_draw_nothing(self, tmp_path):
        with pytest.raises(UsageError, match="no event"):
            save_plot(tmp_path / "x.png", AllocationHistory(), title="t")
