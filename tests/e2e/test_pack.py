"""`cotenant pack` on this machine: jobs share the visible GPUs, nothing is lost, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import pytest

from json_shapes import shape_problems
from sites import TIMEOUT_S, open_site


def until(holds):
    """Wait until `holds()`."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


SIMULATE = ("--here", "--simulate", "3xA100-40GB", "--policy-options", "warmup_s=0")


@pytest.fixture
def place():
    with open_site() as site:
        site.env = {name: value for name, value in site.env.items() if not name.startswith("SLURM_")}
        site.env |= {"CUDA_VISIBLE_DEVICES": "1", "COTENANT_DAEMON__TICK_S": "0.2", "TMPDIR": str(site.root)}
        yield site
        assert list(site.root.glob("cotenant-pack-*")) == []


def listed(place, *lines, name="jobs.txt"):
    (place.root / name).write_text("\n".join(lines) + "\n")
    return name


def job(text, memory="2G"):
    return f"--gpu-mem {memory} --wrap '{text}'"


def packed(place, *words):
    done = place.cli("pack", *SIMULATE, "--json", *words)
    assert done.stdout, done.stderr
    answer = json.loads(done.stdout)
    assert "error" not in answer, answer
    assert shape_problems("pack", done.stdout) == []
    return done.returncode, answer


def test_jobs_share_the_visible_gpu_and_no_other(place):
    # Each waits until all three are there: with one job on a GPU at a time, this would never end.
    meet = "touch here-$COTENANT_ARRAY_TASK_ID; until [ -e here-1 -a -e here-2 -a -e here-3 ]; do sleep 0.05; done"
    show = "; echo $CUDA_VISIBLE_DEVICES"
    code, answer = packed(
        place, listed(place, "# comment", "", f"-a 1-3 {job(meet + show)}", job("exit 3"), job("echo x"))
    )
    assert (code, answer["completed"], answer["failed"], answer["left"]) == (1, 4, 1, 0)
    gpus = {(place.root / "jobs.pack" / f"3_{index}.out").read_text() for index in (1, 2, 3)}
    assert len(gpus) == 1
    assert {(entry["line"], entry["index"], entry["exit_code"]) for entry in answer["jobs"]} == {
        (3, 1, 0),
        (3, 2, 0),
        (3, 3, 0),
        (4, None, 3),
        (5, None, 0),
    }
    place.env["CUDA_VISIBLE_DEVICES"] = "2"
    code, other = packed(place, listed(place, job("echo $CUDA_VISIBLE_DEVICES"), name="other.txt"))
    assert code == 0, other
    assert (place.root / "other.pack" / "1.out").read_text() not in gpus


def test_the_same_command_continues_what_is_left(place):
    listed(place, job("echo once >>first"), job("exit 3"))
    assert packed(place, "jobs.txt")[0] == 1
    listed(place, job("echo new >>third"), job("echo once >>first"), job("exit 3"))  # the lines may move
    code, answer = packed(place, "jobs.txt")
    assert (code, answer["before"], answer["completed"]) == (1, 2, 1)  # one failed, if not in this run
    assert (place.root / "first").read_text() == "once\n"
    assert (place.root / "third").read_text() == "new\n"


def running(place, *words, started):
    """A pack that is running, once the file `started` exists."""
    process = subprocess.Popen(
        [*place.command, "pack", *SIMULATE, *words],
        env=place.env,
        cwd=place.root,
        stdin=subprocess.DEVNULL,
        stdout=(place.root / "out").open("w"),
        stderr=subprocess.STDOUT,
    )
    until(lambda: (place.root / started).exists() or process.poll() is not None)
    assert process.poll() is None, (place.root / "out").read_text()
    return process


def test_a_signal_lets_jobs_save_and_leaves_the_rest(place):
    save = 'trap "echo saved >>state; exit 0" TERM; touch up; while :; do sleep 0.05; done'
    listed(place, job("echo done"), f"--gpu-mem 39G --wrap '[ -e state ] || {{ {save}; }}'", job("echo later", "39G"))
    place.env["COTENANT_SCHEDULING__STOP_GRACE_S"] = "60"  # its handler has to end by itself
    process = running(place, "jobs.txt", started="up")
    process.send_signal(signal.SIGTERM)
    assert process.wait(TIMEOUT_S) == 75
    said = (place.root / "out").read_text()
    assert "1 completed, 0 failed, 0 done before, 2 left (signal 15)" in said
    assert (place.root / "state").read_text() == "saved\n"
    code, answer = packed(place, "jobs.txt")
    assert (code, answer["before"], answer["completed"]) == (0, 1, 2)


def test_a_job_whose_runner_is_signalled_from_outside_is_left_for_the_next_pack(place):
    listed(place, job("[ -e once ] && exit 0; touch once; kill $PPID; sleep 1000"))
    code, answer = packed(place, "jobs.txt")
    assert (code != 0, answer["completed"], answer["failed"], answer["left"]) == (True, 0, 0, 1)
    code, answer = packed(place, "jobs.txt")
    assert (code, answer["before"], answer["completed"], answer["left"]) == (0, 0, 1, 0)


def test_a_pack_that_is_killed_leaves_no_process(place):
    listed(place, job("touch up; setsid sleep 1000 & sleep 1000"))
    process = running(place, "jobs.txt", started="up")
    refused = place.cli("pack", *SIMULATE, "jobs.txt")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (
        2,
        f"error: another `cotenant pack` works in `{place.root}/jobs.pack`",
    )
    process.kill()
    process.wait(TIMEOUT_S)
    until(lambda: place.left_behind() == [])


def test_parts_of_a_list_are_disjoint(place):
    listed(place, *(job(f"echo {i}") for i in range(5)))
    first, second = (packed(place, "--part", f"{i}/2", "jobs.txt")[1] for i in (1, 2))
    assert sorted(entry["line"] for entry in first["jobs"]) == [1, 3, 5]
    assert sorted(entry["line"] for entry in second["jobs"]) == [2, 4]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["--gpu-mem 1G true", "--bogus x"], "error: line 2: no such option `--bogus`"),
        (["nosuch.py"], "error: line 1: no such file: `nosuch.py`"),
        (["--wrap 'x"], "error: line 1: no closing quotation"),
        (["-d afterok:1 true"], "error: line 1: dependencies are not possible in a pack"),
        (["# nothing"], "error: the list has no jobs"),
    ],
)
def test_wrong_lists_start_nothing(place, lines, message):
    done = place.cli("pack", *SIMULATE, listed(place, *lines))
    assert (done.returncode, done.stderr.lower().startswith(message.lower())) == (2, True), done.stderr
    assert not (place.root / "jobs.pack").exists()


def test_gpus_that_are_not_there_are_refused(place):
    listed(place, job("true"))
    place.env["CUDA_VISIBLE_DEVICES"] = "7"
    done = place.cli("pack", *SIMULATE, "jobs.txt")
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, "error: there is no GPU `7` here")
    place.env |= {"CUDA_VISIBLE_DEVICES": "", "SLURM_JOB_ID": "1"}
    done = place.cli("pack", *SIMULATE, "jobs.txt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: this allocation has no GPU")


def test_the_list_may_come_from_stdin(place):
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as text:
        text.write(job("echo from stdin") + "\n")
    process = place.popen("pack", *SIMULATE, stdin=read_end)
    os.close(read_end)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert out.startswith("1 completed, 0 failed")
    assert (place.root / "stdin.pack" / "1.out").read_text() == "from stdin\n"
