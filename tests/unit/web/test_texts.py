import csv
import io
import re

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


@pytest.mark.parametrize(("is_there", "links"), [(True, ['"/here"', '"/"']), (False, ['"/"'])])
def test_a_page_that_does_not_exist_is_not_tried_again(is_there, links):
    names = ("csrf", "is_local", "read_only", "version")
    template = make_environment().get_template("error.html")
    error = {"message": "there is no such page", "hint": None}
    text = template.render(
        dict.fromkeys(names, ""), path="/here", title="t", error=error, is_there=is_there, is_logged_in=True
    )
    assert re.findall(r"href=(\S+)>(?:Try again|Now)</a>", text.partition("there is no such page")[2]) == links


def test_a_job_that_waits_has_no_times_of_a_run():
    times = ("started_at", "ended_at", "waited_s", "running_s", "time_limit_s")
    others = ("exit_code", "usage", "gpu_indices", "priority", "user", "workdir", "reason")
    job = dict.fromkeys((*times, *others)) | {"state": "PENDING", "submitted_at": "2020-01-02T03:04:05.678Z", "gpus": 1}
    macros = make_environment().get_template("_job.html").module
    assert re.findall(r"<dt>(\w+)</dt>", macros.overview(job, "true", ())) == ["user", "submitted", "GPUs", "priority"]
    text = macros.overview(job | {"waited_s": 3.0}, "true", ())
    assert "<dt>waited</dt><dd>3.0s</dd>" in text
