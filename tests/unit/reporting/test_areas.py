import re

from cotenant.reporting.areas import MAX_POINTS, Area, PhaseSpan, areas


def test_layers_add_up_and_the_outline_is_above():
    drawing = areas([Area("a", "t0", [1, 1]), Area("b", "t1", [0, 2])], [2, 3], x_label="x", y_label="y")
    heights = [
        min(map(float, re.findall(r"[ML][\d.]+ ([\d.]+)", path))) for path in re.findall(r' d="([^"]*)Z"', drawing)
    ]
    outline = min(map(float, re.findall(r"[ML][\d.]+ ([\d.]+)", re.search(r'outline" d="([^"]*)"', drawing)[1])))
    assert heights[0] > heights[1]  # y grows downwards
    assert heights[1] == outline


def test_no_peak_is_lost_in_a_long_series():
    values = [1.0] * 50_000
    values[31_337] = 9.0
    drawing = areas([Area("a", "t0", values)], values, x_label="x", y_label="y")
    points = re.findall(r"[ML][\d.]+ ([\d.]+)", re.search(r'outline" d="([^"]*)"', drawing)[1])
    assert len(points) < 3 * MAX_POINTS
    assert len({*points}) >= 2


def test_phases_and_a_limit_are_named_and_an_empty_series_is_drawn():
    drawing = areas(
        [Area("a", "t0", [1.0] * 10)],
        [1.0] * 10,
        phases=[PhaseSpan(0, "forward"), PhaseSpan(5, "<b>")],
        limit=(4.0, "the GPU"),
        x_label="x",
        y_label="y",
    )
    assert ">forward</text>" in drawing
    assert "&lt;b&gt;" in drawing
    assert ">the GPU</text>" in drawing
    assert areas([], [], x_label="x", y_label="y").startswith("<svg")
