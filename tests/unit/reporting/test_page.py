"""A page is complete, escapes every text, and loads nothing from elsewhere."""

from __future__ import annotations

import re

import pytest

from cotenant.core.errors import UsageError
from cotenant.reporting.page import Html, Page, bold, join, legend, note


def test_every_text_is_escaped_once():
    page = Page("<title>")
    page.lead("a & b")
    page.heading("<h>")
    page.paragraph("1 < 2")
    page.note("<n>")
    page.items(["<i>"])
    page.table(("<name>", "<x>"), [("<row>", "<cell>")])
    page.figure("<svg/>", "<caption>")
    page.columns([("<column>", [note("<inner>")])])
    text = page.text()
    for raw in ("<title>", "<h>", "<n>", "<i>", "<name>", "<x>", "<row>", "<cell>", "<caption>", "<column>", "<inner>"):
        assert f"&lt;{raw[1:-1]}&gt;" in text
    assert "&amp;lt;" not in text
    assert "a &amp; b" in text
    assert text.count("<title>") == 1  # the page's own
    assert "<svg/>" in text


def test_backticks_become_code_and_markup_stays():
    page = Page("t")
    page.paragraph("use `--bootstrap <n>`")
    page.lead(join(["fast: ", bold("a<b"), Html("<i>!</i>")]))
    assert "use <code>--bootstrap &lt;n&gt;</code>" in page.text()
    assert "fast: <b>a&lt;b</b><i>!</i>" in page.text()


def test_a_column_of_sentences_is_marked_as_one():
    page = Page("title")
    page.table(["", "Memory", "Meaning"], [("peak", "1 GiB", "of live tensors")], prose=("Meaning",))
    text = page.text()
    assert "<th>Memory</th><th class=prose>Meaning</th>" in text
    assert "<td>1 GiB</td><td class=prose>of live tensors</td>" in text


def test_a_page_is_one_file_that_loads_nothing():
    page = Page("t")
    page.grid([("caption", "<svg/>")])
    page.columns([("s", [legend({"a": "t0"})])])
    text = page.text()
    assert text.startswith("<!doctype html>")
    assert text.count("</html>") == 1
    assert not re.search(r"(?:src|href)=|url\(|https?://|<script", text)


def test_an_unwritable_file_is_named(tmp_path):
    written = Page("t").write(tmp_path / "page.html")
    assert written.read_text() == Page("t").text()
    with pytest.raises(UsageError, match=r"cannot write `.*none/page\.html`: No such file"):
        Page("t").write(tmp_path / "none" / "page.html")
