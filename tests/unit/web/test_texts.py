import csv
import io

import pytest

from cotenant.web.pages.log import plain
from cotenant.web.pages.usage import to_csv
from cotenant.web.templating import make_environment, moment


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\n", "a\nb\n"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07x", "red x"),
        ("10%\r20%\r30%\ndone\n", "30%\ndone\n"),
        ("windows\r\nlines\r\n", "windows\nlines\n"),
        ("bell\x07 nul\x00 c1\x9b", "bell nul c1"),
        ("<script>é", "<script>é"),
    ],
)
def test_output_is_shown_as_its_last_state(text, expected):
    assert plain(text) == expected


def test_csv_holds_no_formulas():
    rows = [
        {"user": name, "jobs": 1, "energy_j": None} for name in ("=1+1", "+a", "-b", "@c", 'a,"b"', "plain", "x\udc80")
    ]
    text = to_csv(("user", "jobs", "energy_j"), rows)
    text.encode()
    found = list(csv.reader(io.StringIO(text)))
    assert found[0] == ["user", "jobs", "energy_j"]
    assert [row[0] for row in found[1:]] == ["'=1+1", "'+a", "'-b", "'@c", 'a,"b"', "plain", "x\\udc80"]
    assert found[1][1:] == ["1", ""]


def test_templates_escape_and_write_unknown_values_as_a_dash():
    environment = make_environment()
    template = environment.from_string('<a title="{{ a }}">{{ a }}</a> {{ b }} {{ c|bytes }} {{ 0|bytes }}')
    assert (
        template.render(a='"<b>\udc80', b=None, c=None)
        == '<a title="&#34;&lt;b&gt;\\udc80">&#34;&lt;b&gt;\\udc80</a> - - 0 B'
    )


def test_times_before_today_have_a_date():
    assert moment("2020-01-02T03:04:05.678Z") == "2020-01-02 03:04 UTC"
    assert moment(None) == "-"
