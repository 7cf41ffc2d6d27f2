"""What `cotenant update` asks for, and what comes too late."""

from __future__ import annotations

import pytest

from cotenant.cli import common, main, update


@pytest.fixture
def asked(monkeypatch):
    """Fields that would be sent, by job."""
    found = {}

    class Client:
        def ids(self, refs):
            return [int(each) for each in refs]

        def update(self, job_id, fields):
            found[job_id] = fields
            return {"label": str(job_id), "reason": "waits"}

    for module in (common, update):
        monkeypatch.setattr(module, "new_client", lambda _: Client())
    return found


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--sharing mps", {"exclusive": False, "share": "mps"}),
        ("--sharing none", {"exclusive": True, "share": "auto"}),
        ("--sharing mig --exclusive", {"exclusive": True, "share": "mig"}),
        ("--no-exclusive", {"exclusive": False}),
        ("--retries 2", {"retries": 2}),
        ("--time-slice 1:00:00", {"time_slice_s": 3600.0}),
        ("--time-slice none --time none", {"time_slice_s": None, "time_limit_s": None}),
        ("--notify none --progress none", {"notify": None, "progress": None}),
        ("--notify https://a/b --progress tqdm", {"notify": "https://a/b", "progress": "tqdm"}),
        ("--max-slowdown 1.5 --gpu-mem 1G", {"declared_bytes": 2**30, "max_slowdown": 1.5}),
        (
            "--max-slowdown none --gpu-mem none --begin none",
            dict.fromkeys(("declared_bytes", "max_slowdown", "begin_at_s")),
        ),
    ],
)
def test_fields(asked, words, fields):
    assert main.main(["update", "7", *words.split()]) == 0
    assert asked == {7: fields}


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("-a 1-3", "--array of a job cannot be updated", "submit another array"),
        ("-o out", "--output of a job cannot be updated", "submit it anew"),
        ("-D /", "--chdir of a job cannot be updated", "submit it anew"),
        ("--export ALL", "--export of a job cannot be updated", "submit it anew"),
        ("--estimator traced", "--estimator of a job cannot be updated", "--gpu-mem"),
        ("-H", "--hold of a job cannot be updated", "cotenant hold"),
        ("--sharing none --no-exclusive", "exclude each other", "leave out"),
        ("--max-slowdown nan", "a slowdown of nan cannot be kept", "1 is no slowdown"),
        ("--max-slowdown inf", "a slowdown of inf cannot be kept", "1 is no slowdown"),
        ("--max-slowdown x", "`--max-slowdown`: `x` is no number", "1.5"),
        ("", "nothing to change", "--help"),
    ],
)
def test_refused(asked, capsys, words, error, hint):
    assert main.main(["update", "7", *words.split()]) == 2
    told = capsys.readouterr().err
    assert error in told
    assert hint in told
    assert asked == {}
