"""Formats of squeue, sinfo and sacct; the lines are those that Slurm 22.05 printed for such jobs."""

from __future__ import annotations

import pytest

from cotenant.cli.slurm_verbs.commands import SINFO_FORMAT, SINFO_SUMMARY_FORMAT, SQUEUE_FORMAT, SQUEUE_LONG_FORMAT
from cotenant.cli.slurm_verbs.fields import (
    SACCT_FIELDS,
    SINFO_FIELDS,
    SLURM_STATES,
    SQUEUE_FIELDS,
    collapse_arrays,
    duration,
    exit_code,
    expand_refs,
    node_state,
    parse_slurm_states,
    reason_of,
    with_steps,
)
from cotenant.cli.slurm_verbs.formats import parse_format, parse_long_format, render, render_sacct, sacct_fields
from cotenant.core.errors import UsageError
from cotenant.daemon.api.views.states import SHORT


def a_job(job_id=13, **changes):
    fields = {
        "id": job_id,
        "label": str(job_id),
        "array_id": None,
        "array_index": None,
        "name": "s.sh",
        "user": "root",
        "state": "PENDING",
        "rule": "insufficient_memory",
        "exit_code": None,
        "gpus": 1,
        "gpu_uuids": [],
        "attempts": 0,
        "observed_bytes": None,
        "priority": 0,
        "time_limit_s": None,
        "running_s": None,
        "submitted_at": "2026-11-22T19:48:11.000Z",
        "started_at": None,
        "ended_at": None,
        "usage": None,
        "node": "n1",
    }
    return {**fields, **changes}


RUNNING = a_job(
    name="run1", state="RUNNING", rule="", time_limit_s=3600.0, running_s=1.2, gpu_uuids=["GPU-0"],
    started_at="2026-11-22T19:48:12.000Z", attempts=1,
)  # fmt: skip
JOBS = [
    a_job(14, name="long name of a job"),
    *(a_job(15 + i, label=f"16_{i}", array_id=16, array_index=i, rule="array_limit") for i in range(1, 6)),
    a_job(21, rule="begin_time"),
    a_job(22, state="HELD", rule=""),
    RUNNING,
]


def squeue(text, jobs=JOBS, header=True):
    return render(parse_format(text, SQUEUE_FIELDS), collapse_arrays(jobs), header=header)


def test_the_default_of_squeue():
    assert squeue(SQUEUE_FORMAT) == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                14       gpu long nam     root PD       0:00      1 (Resources)",
        "          16_[1-5]       gpu     s.sh     root PD       0:00      1 (JobArrayTaskLimit)",
        "                21       gpu     s.sh     root PD       0:00      1 (BeginTime)",
        "                22       gpu     s.sh     root PD       0:00      1 (JobHeldUser)",
        "                13       gpu     run1     root  R       0:01      1 n1",
    ]


def test_the_long_format_of_squeue():
    assert squeue(SQUEUE_LONG_FORMAT, [JOBS[0], RUNNING]) == [
        "             JOBID PARTITION     NAME     USER    STATE       TIME TIME_LIMI  NODES NODELIST(REASON)",
        "                14       gpu long nam     root  PENDING       0:00 UNLIMITED      1 (Resources)",
        "                13       gpu     run1     root  RUNNING       0:01   1:00:00      1 n1",
    ]


def test_letters_of_squeue():
    assert squeue("%i|%A|%F|%K|%j|%t|%l|%L|%R|%r|%N", [JOBS[0], RUNNING], header=False) == [
        "14|14|14|N/A|long name of a job|PD|UNLIMITED|UNLIMITED|(Resources)|Resources|",
        "13|13|13|N/A|run1|R|1:00:00|59:58|n1|None|n1",
    ]
    assert squeue("%.7i %.4j|%8t|%-9u|%.3T", [RUNNING]) == [
        "  JOBID NAME|ST      |%-9u|STA",
        "     13 run1|R       |%-9u|RUN",
    ]


def test_names_of_squeue():
    pieces = parse_long_format("JobID,Name:10,State,TimeUsed,ReasonList:20,UserName:.8", SQUEUE_FIELDS.values())
    assert render(pieces, JOBS[:1], header=True) == [
        "JOBID               NAME      STATE               TIME                NODELIST(REASON)        USER",
        "14                  long name PENDING             0:00                (Resources)             root",
    ]


@pytest.mark.parametrize("text", ["%i %!t %~", "%i %;", "100%"])
def test_text_around_fields_is_printed_as_it_is(text):
    assert squeue(text, [], header=True)[0] == text.replace("%i", "JOBID")


def test_unknown_fields_are_refused_with_those_there_are():
    with pytest.raises(UsageError, match="no field `%O`") as caught:
        parse_format("%i %O", SQUEUE_FIELDS)
    assert "%i" not in caught.value.message
    assert caught.value.hint.startswith("fields: i A F K")
    with pytest.raises(UsageError, match="invalid field `bogus`"):
        parse_long_format("JobID,bogus", SQUEUE_FIELDS.values())
    with pytest.raises(UsageError, match="invalid field `Bogus`"):
        sacct_fields("JobID,Bogus%3", SACCT_FIELDS)


def test_a_width_has_a_limit():
    assert len(squeue("%.999999999i", [RUNNING])[0]) == 1000


def test_sinfo():
    node = {"name": "n1", "state": ("mixed", "mix"), "cpus": 16, "memory_mib": 2000, "gpus": 2}
    assert render(parse_format(SINFO_FORMAT, SINFO_FIELDS), [node], header=True) == [
        "PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST",
        "gpu*         up   infinite      1    mix n1",
    ]
    assert render(parse_format(SINFO_SUMMARY_FORMAT, SINFO_FIELDS), [node], header=True) == [
        "PARTITION AVAIL  TIMELIMIT   NODES(A/I/O/T) NODELIST",
        "gpu*         up   infinite          1/0/0/1 n1",
    ]
    assert render(parse_format("%P|%a|%l|%D|%t|%T|%N|%n|%c|%m|%G", SINFO_FIELDS), [node], header=False) == [
        "gpu*|up|infinite|1|mix|mixed|n1|n1|16|2000|gpu:2"
    ]


@pytest.mark.parametrize(("residents", "short"), [([0, 0], "idle"), ([1, 0], "mix"), ([1, 3], "alloc"), ([], "idle")])
def test_the_state_of_the_node(residents, short):
    assert node_state([{"residents": [{}] * count} for count in residents])[1] == short


DONE = a_job(
    17, name="a long name of it", state="FAILED", rule="", exit_code=3, running_s=3725.9, gpu_uuids=["GPU-0"],
    attempts=2,
    started_at="2026-11-22T19:48:12.000Z", ended_at="2026-11-22T20:50:18.000Z", observed_bytes=3 * 2**30,
)  # fmt: skip


def sacct(text, jobs, **options):
    settings = {"header": True, "separator": "", "ends": False, **options}
    return render_sacct(sacct_fields(text, SACCT_FIELDS), jobs, **settings)


def test_the_table_of_sacct():
    assert sacct("JobID,JobName,State,ExitCode", with_steps([DONE])) == [
        "JobID           JobName      State ExitCode ",
        "------------ ---------- ---------- -------- ",
        "17           a long na+     FAILED      3:0 ",
        "17.batch          batch     FAILED      3:0 ",
    ]


def test_parsable_sacct():
    fields = "jobid,state,elapsed,TRESUsageInMax,Restarts"
    assert sacct(fields, with_steps([DONE]), separator="|") == [
        "JobID|State|Elapsed|TRESUsageInMax|Restarts",
        "17|FAILED|01:02:05||1",
        "17.batch|FAILED|01:02:05|gres/gpumem=3072M|1",
    ]
    assert sacct("JobID,State", [DONE], separator="|", ends=True, header=False) == ["17|FAILED|"]
    assert sacct("State%-12,JobID%4", [DONE], header=False) == ["FAILED         17 "]


def test_a_job_that_never_started_has_no_step():
    assert [job["id"] for job in with_steps([a_job(3), DONE])] == [3, 17, 17]


@pytest.mark.parametrize(
    ("state", "code", "wanted"),
    [
        ("COMPLETED", 0, "0:0"),
        ("FAILED", 3, "3:0"),
        ("FAILED", 137, "0:9"),
        ("OOM", 1, "0:125"),
        ("TIMEOUT", 124, "0:0"),
        ("CANCELLED", 143, "0:0"),
        ("RUNNING", None, "0:0"),
    ],
)
def test_exit_codes_of_sacct(state, code, wanted):
    assert exit_code(a_job(state=state, exit_code=code)) == wanted


def test_every_state_has_a_name_in_slurm():
    assert SLURM_STATES.keys() == SHORT.keys()


def test_states_are_read_by_both_names():
    assert parse_slurm_states("pd,RUNNING") == {"PENDING", "HELD", "RUNNING"}
    assert parse_slurm_states("OUT_OF_MEMORY,NF") == {"OOM", "LOST"}
    assert parse_slurm_states("S,CG") == frozenset()  # states of Slurm that no job is in
    assert parse_slurm_states("all") == SLURM_STATES.keys()
    with pytest.raises(UsageError, match="invalid job state specified: XX"):
        parse_slurm_states("R,xx")


@pytest.mark.parametrize(
    ("rule", "word"),
    [("dependency", "Dependency"), ("head_of_line", "Priority"), ("", "Priority"), ("slowdown", "Resources")],
)
def test_reasons_are_words_of_slurm(rule, word):
    assert reason_of(a_job(rule=rule)) == word
    assert reason_of(a_job(state="COMPLETED", rule=rule)) == "None"


@pytest.mark.parametrize(
    ("seconds", "text", "padded"),
    [
        (5, "0:05", "00:00:05"),
        (3600, "1:00:00", "01:00:00"),
        (93784, "1-02:03:04", "1-02:03:04"),
        (None, "0:00", "00:00:00"),
    ],
)
def test_durations(seconds, text, padded):
    assert (duration(seconds), duration(seconds, padded=True)) == (text, padded)


def test_pending_tasks_of_an_array_are_one_line():
    tasks = [a_job(10 + i, label=f"10_{i}", array_id=10, array_index=i) for i in (1, 2, 3, 7)]
    running = {**tasks[1], "state": "RUNNING"}
    collapsed = collapse_arrays([tasks[0], running, tasks[2], tasks[3]])
    assert [job["label"] for job in collapsed] == ["10_[1,3,7]", "10_2"]
    assert [job["label"] for job in collapse_arrays(tasks[:1])] == ["10_1"]


def test_references_to_jobs():
    assert expand_refs(["17,18_[1,3-5]", "19_2", "20_[1-9%2]"]) == ["17", "18_1", "18_[3-5]", "19_2", "20_[1-9]"]
    for word in ("x", "17_", "17_[a]", "-1", ""):
        with pytest.raises(UsageError, match="invalid job id"):
            expand_refs([word])
