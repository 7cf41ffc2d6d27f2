"""Which fields `cotenant update` sends, and which options it refuses."""

from __future__ import annotations

import dataclasses

import pytest

from cotenant.cli import main
from cotenant.cli.common import Connection
from cotenant.cli.jobs import update
from cotenant.cli.jobs.job_options import JobRequest
from cotenant.cli.slurm_verbs.options import parse_dependencies
from cotenant.daemon.api.submission.job_fields import UPDATABLE_FIELDS


@pytest.fixture
def updated(monkeypatch):
    """Fields that are sent, by job."""
    found = {}

    class Client:
        def ids(self, refs):
            return [int(ref) for ref in refs]

        def update(self, job_id, fields):
            found[job_id] = fields
            return {"id": job_id, "label": str(job_id), "reason": "waits"}

    monkeypatch.setattr(Connection, "client", lambda _: Client())
    return found


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("--sharing mps", {"exclusive": False, "sharing": "mps"}),
        ("--sharing none", {"exclusive": True, "sharing": "auto"}),
        ("--sharing mig --exclusive", {"exclusive": True, "sharing": "mig"}),
        ("--no-exclusive", {"exclusive": False}),
        ("--retries 2", {"retries": 2}),
        ("--gres gpu:2", {"gpus": 2}),
        ("--nice 3", {"priority": -3}),
        ("-d none", {"after": [], "after_any": [], "after_failed": [], "singleton": False}),
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
def test_update_sends_only_the_fields_of_its_options(updated, words, fields):
    assert main.main(["update", "7", *words.split()]) == 0
    assert updated == {7: fields}


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("-a 1-3", "--array of a job cannot be updated", "submit another array"),
        ("-o out", "--output of a job cannot be updated", "submit it again"),
        ("-D /", "--chdir of a job cannot be updated", "submit it again"),
        ("--export ALL", "--export of a job cannot be updated", "submit it again"),
        ("--estimator traced", "--estimator of a job cannot be updated", "--gpu-mem"),
        ("-H", "--hold of a job cannot be updated", "cotenant hold"),
        ("--sharing none --no-exclusive", "exclude each other", "leave out"),
        ("--max-slowdown nan", "`--max-slowdown`: must be >= 1, got `nan`", "--help"),
        ("--max-slowdown inf", "`--max-slowdown`: must be >= 1, got `inf`", "--help"),
        ("--max-slowdown x", "`--max-slowdown`: must be a number, got `x`", "--help"),
        ("", "nothing to change", "--help"),
    ],
)
def test_update_refuses_options_that_cannot_change(updated, capsys, words, error, hint):
    assert main.main(["update", "7", *words.split()]) == 2
    message = capsys.readouterr().err
    assert error in message
    assert hint in message
    assert updated == {}


@pytest.mark.parametrize("field", UPDATABLE_FIELDS)
def test_every_updatable_field_has_an_option(field):
    """One table says what may change; the options of `update` set these fields, or are refused with a hint."""
    options = {spelling: param for param in update.command.params for spelling in param.opts}
    option = options[UPDATABLE_FIELDS[field].option]
    names = {job_field.name for job_field in dataclasses.fields(JobRequest)} | {
        "checkpoint_grace_s"
    }  # of --checkpoint-signal
    refused = option.hidden and option.callback is not None
    assert refused or field in names or field in parse_dependencies(None)


def test_help_names_no_default(capsys):
    """What is not given stays as it is: the defaults of `submit` do not hold here."""
    assert main.main(["submit", "--help"]) == 0
    assert "[default:" in capsys.readouterr().out
    assert main.main(["update", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "[default:" not in words
    assert words.count("default") == words.count("by default TERM") == 1


def test_update_sets_no_field_that_the_daemon_refuses():
    special = {"gres", "nice", "dependency", "checkpointable"}
    names = {field.name for field in dataclasses.fields(JobRequest)} - special
    assert names | set(parse_dependencies(None)) <= UPDATABLE_FIELDS.keys()
