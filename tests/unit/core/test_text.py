"""One rule for text where it enters, one escape where it leaves."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from builders import a_spec
from cotenant.core.codec import encode
from cotenant.core.errors import UsageError
from cotenant.core.text import printable
from cotenant.daemon.api.submission.job_specs import parse_spec
from cotenant.daemon.api.views.metrics import MetricsSnapshot, PrometheusCollector
from cotenant.daemon.auth.unix_socket import Peer

PEER = Peer(pid=1, uid=0, gid=0)
GOOD = {
    "label": ["bert", "größe 3", "训练 \U0001f468\u200d\U0001f52c", "\u2764\ufe0f", "می\u200cروم"],
    "lines": ["echo a\n\techo b"],
    "path": ["/home/größe/a b", "/data/\udcff"],
    "bytes": ["a\nb\x1b[0m", "\udcff\udc80"],
}
INVISIBLE = ["a\u00adb", "a\u200bb", "\u3164", "a\ufeff", "\u2060", "\U000e0041"]
BAD = {
    "label": ["a\nb", "\x1b[2J", "a\x00", "\x9b2J", "\ud83d", "\udcff", "a\u2028b", "a\u202eb", "a\u2066b", *INVISIBLE],
    "lines": ["\x1b]0;x\x07", "a\rb", "\ud83d"],
    "path": ["/a\nb", "/\x1b[2J", "/\ud83d"],
    "bytes": ["a\0b", "\ud83d", "\udfff"],
}
FIELDS = (
    ("name", "label", lambda text: text),
    ("source", "label", lambda text: text),
    ("notify", "lines", lambda text: text),
    ("workdir", "path", lambda text: text),
    ("stdout_path", "path", lambda text: text),
    ("stderr_path", "path", lambda text: text),
    ("command", "bytes", lambda text: ["sh", text]),
    ("env", "bytes", lambda text: {"A": text}),
)


def submitted(**fields):
    return parse_spec({**encode(a_spec()), **fields}, PEER)


@pytest.mark.parametrize(("field", "kind", "put"), FIELDS, ids=[field for field, _, _ in FIELDS])
def test_each_field_takes_the_text_of_its_kind_and_no_other(field, kind, put):
    for text in GOOD[kind]:
        submitted(**{field: put(text)})
    for text in BAD[kind]:
        with pytest.raises(UsageError, match=r"has the character U\+[0-9A-F]{4,5} at \d+, which it may not have"):
            submitted(**{field: put(text)})


def test_names_of_variables_are_checked_as_their_values():
    with pytest.raises(UsageError, match=r"environment of the job has the character U\+D83D"):
        submitted(env={"A\ud83d": "1"})


@pytest.mark.parametrize("text", [text for texts in BAD.values() for text in texts])
def test_what_leaves_can_be_written_and_neither_acts_nor_hides(text):
    escaped = printable(text)
    escaped.encode()
    assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 or char in "\u2028\u202e\u2066" for char in escaped)
    assert not set("\u00ad\u200b\u3164\ufeff\u2060\U000e0041") & set(escaped)
    assert printable(escaped) == escaped


def test_ordinary_text_leaves_as_it_came():
    for text in GOOD["label"]:
        assert printable(text) == text
    assert printable("\x1b[2J\u202e\ud83d") == "\\x1b[2J\\u202e\\ud83d"


def test_metrics_are_served_and_parse_whatever_names_an_older_journal_holds():
    names = ["\ud83d", 'a"b\\c\nd', "\x1b[2J"]
    running = [
        {"job": str(i), "name": name, "user": "ann", "usage": None, "slowdown": 1.0, "idle_s": None}
        for i, name in enumerate(names)
    ]
    snapshot = MetricsSnapshot(
        info={"version": "1", "policy": "p", "backend": "b"},
        jobs={},
        gpus=[],
        oldest_wait_s=None,
        journal_ok=True,
        jobs_running=running,
    )
    text = PrometheusCollector(lambda: snapshot).text().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    found = [sample.labels["name"] for sample in families["cotenant_job_slowdown_ratio"].samples]
    assert found == ["\\ud83d", *names[1:]]
