"""The plot of how drawn configurations are spread."""

from __future__ import annotations

import math

import pytest

from cotenant.cli.main import main
from cotenant.learn.data_collection.configs import fields_of
from cotenant.learn.data_collection.generate import generate
from cotenant.learn.data_collection.ranges import Span, load_ranges
from cotenant.learn.reports.spread_plot import drawn, parts

pytest.importorskip("matplotlib", reason="drawing needs it")


@pytest.mark.parametrize("family", ["mlp", "transformer"])
def test_every_setting_has_a_panel(tmp_path, family, capsys):
    path = tmp_path / "spread.svg"
    assert main(["learn", "generate", family, "--count", "40", "--plot", str(path)]) == 0
    assert f"plot in `{path}`" in capsys.readouterr().err
    text = path.read_text()
    assert all(f"<!-- {name}" in text for name in fields_of(family))


@pytest.mark.parametrize("family", ["mlp", "cnn", "transformer"])
def test_bins_of_an_even_draw_are_level(family):
    ranges = load_ranges(family)
    configs = generate(ranges, 2000, seed=3)
    for name, range_ in ranges.ranges.items():
        if not isinstance(range_, Span):
            continue
        values = drawn(configs, name, range_)
        counts = (
            [sum(i / 20 <= value < (i + 1) / 20 for value in values) for i in range(20)]
            if range_.of
            else [height for *_, height in parts(values, range_)]
        )
        assert len(counts) > 5
        level = len(values) / 20
        assert all(abs(count / level - 1) < 0.25 for count in counts), name


def test_bins_of_a_logarithmic_range_are_logarithmic():
    doubled = [1, 2, 2, 3, 3, *range(4, 8), *range(4, 8)]  # as often as 1/x says, about
    found = parts(doubled, Span(low=1, high=7, by="log"))
    assert [(start, end) for start, end, _ in found] == [(i - 0.5, i + 0.5) for i in range(1, 8)]
    assert found[0][2] == pytest.approx(1 / (math.log(2) / math.log(8) * 20))


def test_classes_of_gpt_are_not_drawn():
    ranges = load_ranges("transformer")
    configs = generate(ranges, 50, seed=0)
    assert len(drawn(configs, "classes", ranges.ranges["classes"])) == 40
    assert len(drawn(configs, "heads", ranges.ranges["heads"])) == 40


def test_an_unknown_format_is_refused(tmp_path, capsys):
    assert main(["learn", "generate", "mlp", "--plot", str(tmp_path / "spread.doc")]) == 2
    assert "`spread.doc` names no known format" in capsys.readouterr().err
