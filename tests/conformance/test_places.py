"""Jobs fare the same wherever a daemon of ours runs them; `places` says where, and how to add a place."""

from __future__ import annotations

import datetime
import signal
import sys

import pytest

from cotenant.core.units import GiB
from places import GATE, NAMES, TIMEOUT_S, opened, signaled_until_ended, until


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    """A place whose first job waits until the end of the module, so that a pack does not end before."""
    with opened(request.param, GATE) as case:
        yield case
        (case.root / "open").touch()


def submit(case, *command, **fields):
    """Id of a new job: a command, or a shell script."""
    argv = ["sh", "-c", command[0]] if len(command) == 1 else list(command)
    body = {"command": argv, "workdir": str(case.root), "env": case.env, "name": "job", "declared_bytes": GiB}
    return case.client.submit([{**body, **fields}])[0]["id"]


def ended(case, job_id):
    view = case.client.wait(job_id, timeout_s=TIMEOUT_S)
    assert view["ended_at"] is not None, view
    return view


def output(case, job_id, stream="stdout"):
    return b"".join(case.client.logs(job_id, stream=stream)).decode()


def test_ends_are_reported_with_exit_code_signal_and_reason(case):
    scripts = ("true", "exit 3", "kill -SEGV $$", "no-such-program")
    views = [ended(case, job_id) for job_id in [submit(case, script) for script in scripts]]
    assert [(view["state"], view["exit_code"]) for view in views] == [
        ("COMPLETED", 0),
        ("FAILED", 3),
        ("FAILED", 128 + signal.SIGSEGV),
        ("FAILED", 127),
    ]


def test_output_and_environment_are_the_jobs(case):
    job_id = submit(case, "echo out $COTENANT_JOB_ID $CUDA_VISIBLE_DEVICES; echo err >&2")
    view = ended(case, job_id)
    uuids = {gpu["uuid"] for gpu in case.client.gpus()}
    word, number, gpu = output(case, job_id).split()
    assert (word, number, output(case, job_id, "stderr")) == ("out", str(job_id), "err\n")
    assert gpu in uuids
    assert view["attempts"] == 1


def test_a_cancelled_job_gets_sigterm_and_then_sigkill(case):
    # The handler starts no program: it has half a second on a machine that may be busy.
    polite = submit(case, f"trap 'echo >{case.root}/bye; exit 5' TERM; touch polite; while :; do sleep 0.05; done")
    stubborn = submit(case, "trap '' TERM; touch stubborn; while :; do sleep 0.05; done")
    for name in ("polite", "stubborn"):
        until((case.root / name).exists, f"{name} runs")
    for job_id in (polite, stubborn):
        case.client.cancel(job_id)
    assert [ended(case, job_id)["state"] for job_id in (polite, stubborn)] == ["CANCELLED"] * 2
    assert (case.root / "bye").exists()


def test_a_signal_reaches_the_job(case):
    job_id = submit(case, "trap 'exit 7' USR1; touch listens; while :; do sleep 0.05; done")
    until((case.root / "listens").exists, "the job runs")
    signaled_until_ended(case.client, job_id)
    assert ended(case, job_id)["exit_code"] == 7


def test_gpu_memory_is_that_of_the_job_which_holds_it(case):
    job = (sys.executable, "-m", "cotenant.simserver.fake_job", "--delay", "0.1", "--duration", "100000", "--peak-gib")
    ids = [submit(case, *job, gib, declared_bytes=4 * GiB) for gib in ("2", "3")]
    for job_id, gib in zip(ids, (2, 3), strict=True):
        until(
            lambda job_id=job_id, gib=gib: case.client.job(job_id)["observed_bytes"] == gib * GiB, "its memory is seen"
        )
    for job_id in ids:
        case.client.cancel(job_id)
        ended(case, job_id)


NAMES_OF_TIMES = ("submitted", "started", "ended")


def test_times_are_in_order_and_of_our_clock(case):
    before = datetime.datetime.now(datetime.timezone.utc)
    view = ended(case, submit(case, "true"))
    after = datetime.datetime.now(datetime.timezone.utc)
    reported = [datetime.datetime.fromisoformat(view[f"{name}_at"].replace("Z", "+00:00")) for name in NAMES_OF_TIMES]
    rounding = datetime.timedelta(seconds=0.001)
    assert before - rounding <= reported[0] <= reported[1] <= reported[2] <= after + rounding
