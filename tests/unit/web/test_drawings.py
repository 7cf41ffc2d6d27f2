import re
from html.parser import HTMLParser

import pytest

from cotenant.web.drawings.gantt import MAX_LANES, MOVED, GanttBar, Mark, gantt
from cotenant.web.drawings.memory_bar import gpu_bar
from cotenant.web.drawings.memory_history import memory_history
from cotenant.web.drawings.memory_profile import memory_profile_chart
from cotenant.web.drawings.overview import overview

GiB = 2**30


def a_resident(**fields):
    return {"job_id": 7, "name": "n", "promised_bytes": 10 * GiB, "observed_bytes": 4 * GiB, **fields}


def a_gpu(*residents, **fields):
    return {
        "index": 0,
        "uuid": "GPU-0",
        "mig_profile": None,
        "memory_total_bytes": 40 * GiB,
        "used_bytes": 5 * GiB,
        "promised_bytes": sum(resident["promised_bytes"] for resident in residents),
        "foreign_bytes": None,
        "sample_age_s": 0.1,
        "residents": residents,
        **fields,
    }


def rects(drawing):
    return [
        (css.split()[0], float(width))
        for css, width in re.findall(r'<rect class="([^"]*)"[^>]*? width="([\d.]+)"', drawing)
        if css != "track"
    ]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        pytest.param(a_gpu(a_resident()), [("seen", 100), ("promise", 150)], id="grows"),
        pytest.param(
            a_gpu(a_resident(observed_bytes=14 * GiB)), [("seen", 250), ("over", 100)], id="beyond its promise"
        ),
        pytest.param(a_gpu(a_resident(observed_bytes=None)), [("promise", 250)], id="not seen yet"),
        pytest.param(a_gpu(foreign_bytes=8 * GiB), [("foreign", 200)], id="a stranger's"),
        pytest.param(
            a_gpu(a_resident(promised_bytes=30 * GiB, observed_bytes=30 * GiB), foreign_bytes=30 * GiB),
            [("seen", 500), ("foreign", 500)],
            id="more than there is",
        ),
        pytest.param(a_gpu(), [], id="empty"),
    ],
)
def test_a_bar_shows_what_was_seen_of_each_promise(gpu, expected):
    assert rects(gpu_bar(gpu)) == expected


def test_the_overview_has_a_link_for_each_page():
    ages = [0] * 1000
    ages[3] = 60
    totals = {"promised_ratios": [i / 1000 for i in range(1000)], "sample_ages_s": ages}
    drawing = overview(totals, 48, stale_after_s=5.0)
    assert re.findall(r'href="/\?gpus=(\d+)"', drawing) == [str(page + 1) for page in range(21)]
    squares = {}
    for level, path in re.findall(r'<path class="(\w+)" d="([^"]*)"', drawing):
        for x, y, width in re.findall(r"M(\d+) (\d+)h(\d+)", path):
            assert (int(width) + 2) % 10 == 0
            squares |= dict.fromkeys((f"{int(x) + 4 + 10 * i} {y}" for i in range((int(width) + 2) // 10)), level)
    assert len(squares) == 1000
    assert (squares["5 5"], squares["35 5"], squares[f"{999 % 48 * 10 + 5} {999 // 48 * 10 + 5}"]) == (
        "l0",
        "stale",
        "l4",
    )
    assert len(drawing) < 5_000


def test_the_memory_of_the_steps_is_stacked_by_category():
    profile = {
        "category_bytes": {"<b>": [GiB, GiB], "activation": [0, 3 * GiB], "parameter": [2 * GiB, 2 * GiB]},
        "phases": [[0, "load"], [1, "\ud800</title>"]],
    }
    drawing, tones = memory_profile_chart(profile)
    assert list(tones) == ["parameter", "activation", "<b>"]
    assert re.findall("<title>(.*?)</title>", drawing) == ["parameter", "activation", "&lt;b&gt;", "requested"]
    assert "</title>" not in re.sub("<title>[^<]*</title>", "", drawing)
    drawing.encode()


class Tags(HTMLParser):
    """Collects the names of tags and of attributes."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


NAMES = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onload='x",
    "&lt;b&gt;",
    "a\udc80b",
    "x" * 500,
]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_jobs_are_text_in_a_gantt(name):
    bars = [GanttBar("GPU-0", 1, f"1 {name}", 0.0, 3000.0, "completed")]
    drawing = gantt({"GPU-0": "GPU 0"}, bars, [Mark(10.0, "mark-oom", name)], 0.0, 3600.0, 1000).bars
    found = Tags()
    found.feed(drawing)
    assert found.tags == {"svg", "path", "text", "rect", "a", "title"}
    assert not {attribute for attribute in found.attributes if attribute.startswith("on") or attribute == "style"}
    drawing.encode()


def test_runs_at_the_same_time_get_lanes():
    bars = [
        GanttBar("GPU-0", job, f"{job}", begin, begin + 100.0, "completed")
        for job, begin in enumerate((0.0, 50.0, 100.0))
    ]
    drawing = gantt({"GPU-0": "GPU 0"}, bars, [], 0.0, 200.0, 1000).bars
    assert re.findall(r'class="run [^"]*" x="[\d.]+" y="(\d+)"', drawing) == ["23", "39", "23"]
    crowd = [bar._replace(begin_s=0.0, end_s=100.0) for bar in bars * 20]
    assert (
        len(set(re.findall(r'class="run [^"]*" x="[\d.]+" y="(\d+)"', gantt({}, crowd, [], 0.0, 200.0, 1000).bars)))
        == MAX_LANES
    )


def test_a_move_is_an_arrow_to_where_the_job_goes_on():
    bars = [
        GanttBar("GPU-0", 1, "1 <a>", 0.0, 100.0, MOVED),
        GanttBar("GPU-1", 1, "1 <a>", 120.0, 200.0, "failed"),
        GanttBar("GPU-0", 1, "1 <a>", 210.0, 250.0, "completed"),
        GanttBar("GPU-1", 2, "2 b", 210.0, 250.0, "completed"),
    ]
    gpus = {"GPU-0": "GPU 0", "GPU-1": "GPU 1"}
    drawing = gantt(gpus, bars, [], 0.0, 300.0, 402).bars
    arrows = re.findall(r'<path class="move" d="M([\d.]+) ([\d.]+)L([\d.]+) ([\d.]+)m', drawing)
    assert arrows == [("192.0", "30.0", "212.0", "52.0")], "a failed run that is followed by another is no move"
    assert "<title>1 &lt;a&gt;: moved</title>" in drawing
    late = [bar for bar in bars if bar.begin_s > 0]
    assert 'class="move"' not in gantt(gpus, late, [], 100.0, 300.0, 402).bars


def test_memory_over_time_breaks_where_nothing_was_read():
    points = [{"at_s": at_s, "seconds": 1.0, "max_bytes": 5.0 * GiB} for at_s in (100.0, 101.0, 900.0, 901.0)]
    gpus = [{"index": 0, "points": [{"at_s": 10.0, "seconds": 1.0, "max_bytes": 1.0}, *points]}]
    drawing = memory_history(gpus, since_s=100.0, promised_bytes=6 * GiB)
    path = re.search(r'class="line s-t0" d="([^"]*)"', drawing)[1]
    assert re.findall("[ML]", path) == ["M", "L", "M", "L"]
    assert memory_history(gpus, since_s=5000.0, promised_bytes=GiB) is None
    ended = memory_history(gpus, since_s=100.0, until_s=500.0, promised_bytes=6 * GiB)
    assert len(re.findall("[ML]", re.search(r'class="line s-t0" d="([^"]*)"', ended)[1])) == 2
