"""Root's daemon serves real users of the machine, and keeps them apart. Needs root, and two users made for it."""

from __future__ import annotations

import json
import os
import pwd
import shlex
import subprocess
import time
import uuid

import pytest

from people import Person, made_users, needs_users, open_to_users, start_for_all

pytestmark = needs_users


@pytest.fixture
def site(site):
    """A site whose daemon and clients run on a Python that others may run, too."""
    return open_to_users(site)


@pytest.fixture(scope="module")
def users():
    """Two users with homes, for as long as these tests run."""
    with made_users(2) as accounts:
        yield accounts


@pytest.fixture
def people(site, users):
    start_for_all(site)
    return [Person(site, user) for user in users]


def test_a_job_runs_as_its_user_with_their_groups_in_their_folder(people):
    ann, _ = people
    script = "id -un; id -Gn; pwd; umask; touch made; cat /etc/shadow"
    job = ann.submit("-o", "out-%j", "--", "sh", "-c", script)
    assert ann.cli("wait", job).returncode == 1
    lines = ann.cli("logs", job).stdout.splitlines()
    groups = subprocess.run(["id", "-Gn", ann.name], capture_output=True, text=True, check=True).stdout.strip()
    assert lines[:3] == [ann.name, groups, str(ann.home)]
    assert "Permission denied" in lines[4]
    owners = {(ann.home / name).stat().st_uid for name in ("made", f"out-{job}")}
    assert owners == {ann.account.pw_uid}
    assert json.loads(ann.cli("show", job, "--json").stdout)["job"]["user"] == ann.name


def test_a_job_has_the_mask_and_the_limits_of_the_shell_it_was_submitted_from(people, site):
    ann, _ = people
    words = (*site.command, "submit", "--parsable", "--gpu-mem", "1G", "-o", "out", "--")
    script = "umask; ulimit -Sn; ulimit -Hn; ulimit -c; touch masked"
    shell = f"umask 027; ulimit -c 0; ulimit -Sn 400; ulimit -Hn 500; exec {shlex.join(words)} sh -c '{script}'"
    job = ann.run("sh", "-c", shell).stdout.strip()
    assert ann.cli("wait", job).returncode == 0
    assert ann.cli("logs", job).stdout.split() == ["0027", "400", "500", "0"]
    assert {(ann.home / name).stat().st_mode & 0o777 for name in ("out", "masked")} == {0o640}


def test_a_pipe_for_the_output_holds_no_gpu(people, site):
    ann, _ = people
    os.mkfifo(ann.home / "pipe")
    os.chown(ann.home / "pipe", ann.account.pw_uid, ann.account.pw_gid)
    job = ann.submit("-o", "pipe", "--", "true")
    assert "a pipe without a reader" in site.wait(int(job))["reason"]


def test_a_job_of_a_deleted_user_does_not_run_as_another(people, site):
    ann, _ = people
    leaving = f"cot{uuid.uuid4().hex[:8]}"
    subprocess.run(["useradd", "-m", leaving], check=True)
    try:
        account = pwd.getpwnam(leaving)
        other = Person(site, account)
        job = other.submit("-H", "-D", "/", "--", "true")
    finally:
        subprocess.run(["userdel", "-r", leaving], check=True, capture_output=True)
    subprocess.run(["useradd", "-M", "-u", str(account.pw_uid), f"{leaving}x"], check=True)
    try:
        assert site.cli("release", job).returncode == 0
        assert f"was that of user `{leaving}` and is `{leaving}x`'s now" in site.wait(int(job))["reason"]
    finally:
        subprocess.run(["userdel", f"{leaving}x"], check=True, capture_output=True)
    assert ann.cli("show", job).returncode == 5


def test_names_that_are_too_long_are_refused(people):
    ann, _ = people
    done = ann.cli("submit", "--gpu-mem", "1G", "-J", "x" * 300, "--", "true")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "error: the name of the job has 300 characters, wanted at most 255",
    )


SIGNAL = """
import signal, sys
from cotenant.daemon.client import Client
print(Client().signal(signal.SIGCONT, target="all", active=True))
try:
    Client().signal(signal.SIGCONT, [sys.argv[1]], target="all")
except Exception as error:
    print(type(error).__name__)
"""
"""Signals all running jobs that one may signal, and then one by its id."""


def test_users_cannot_see_change_or_read_jobs_of_others(people, site):
    ann, bob = people
    job = ann.submit("--", "sh", "-c", "echo secret; sleep 1000")
    assert ann.cli("ls", "--no-header", "--format", "id").stdout.split() == [job]
    assert bob.cli("ls", "--no-header", "--format", "id").stdout.split() == []
    for verb in ("show", "explain", "logs", "events", "attach", "wait", "cancel", "hold", "release", "requeue"):
        done = bob.cli(verb, job)
        assert (verb, done.returncode, done.stdout) == (verb, 5, "")
        assert "another user's" in done.stderr
    signaled = bob.python(SIGNAL, job)  # without the client's look at the id before
    assert (signaled.returncode, signaled.stdout) == (0, "([], [])\nNotPermitted\n"), signaled.stderr
    assert bob.cli("update", job, "--nice", "1").returncode == 5
    assert bob.cli("submit", "-d", f"afterany:{job}", "--", "true").returncode == 5
    assert bob.cli("submit", "--priority", "5", "--", "true").returncode == 5
    assert bob.cli("daemon", "stop").returncode == 5
    assert json.loads(bob.cli("daemon", "status", "--json").stdout)["jobs"] == {}
    site.started(int(job))
    (resident,) = [
        resident for gpu in json.loads(bob.cli("gpus", "--json").stdout)["gpus"] for resident in gpu["residents"]
    ]
    assert (resident["job_id"], resident["name"], resident["promised_bytes"]) == (None, None, 2**30)
    # Root may, and it is noted.
    assert site.cli("cancel", job).returncode == 0
    assert ann.cli("wait", job).returncode == 143
    assert "admin action" in site.log.read_text()
    assert "cancel by root" in ann.cli("events", job).stdout


def test_a_configured_admin_can_manage_jobs_of_others(site, users):
    site.env["COTENANT_ACCESS__ADMINS"] = users[1].pw_name
    start_for_all(site)
    ann, bob = (Person(site, user) for user in users)
    job = ann.submit("--", "sleep", "1000")
    assert bob.cli("ls", "--no-header", "--format", "user").stdout.split() == [ann.name]
    assert bob.cli("cancel", job).returncode == 0
    assert f"cancel by {bob.name}" in ann.cli("events", job).stdout


def test_the_daemon_reads_no_file_for_a_user_that_they_could_not_read(people, site):
    ann, _ = people
    secret = site.root / "secret"
    secret.write_text("root only\n")
    secret.chmod(0o600)
    job = ann.submit("-o", "log", "--", "sh", "-c", f"echo mine; rm log; ln -s {secret} log")
    assert ann.cli("wait", job).returncode == 0
    assert (ann.home / "log").is_symlink()
    assert ann.cli("logs", job).stdout == ""
    secret.chmod(0o644)
    assert ann.cli("logs", job).stdout == "root only\n"  # what anybody may read, they may


def test_no_output_is_written_with_the_daemon_s_rights(people, site):
    ann, _ = people
    target = site.root / "target"
    state = site.root / "state" / "cotenant" / "attempts"
    job = ann.submit("-o", f"{state}/1/1/../../../../../target", "--", "echo", "owned")
    assert ann.cli("wait", job).returncode != 0
    assert not target.exists()
    assert "cannot open" in ann.cli("show", job).stdout


def test_an_estimate_runs_as_the_user(people):
    pytest.importorskip("torch", reason="tracing needs torch")
    ann, _ = people
    # What a traced script writes may go nowhere; what it raises is told.
    (ann.home / "train.py").write_text(
        "import os, torch\n"
        "who = [os.getuid(), os.getgid(), sorted(os.getgroups()), os.environ['HOME']]\n"
        "raise RuntimeError(f'I am {who}')\n"
    )
    done = ann.cli("submit", "--dry-run", "train.py")
    groups = sorted(os.getgrouplist(ann.name, ann.account.pw_gid))
    who = [ann.account.pw_uid, ann.account.pw_gid, groups, str(ann.home)]
    assert f"I am {who}" in done.stdout, (done.stdout, done.stderr)


def test_only_root_can_serve_all_users(site, users):
    ann = Person(site, users[0])
    done = ann.cli("daemon", "--all-users", "--simulate", "1xA100-40GB", "--socket", f"{ann.home}/s")
    assert (done.returncode, done.stderr.splitlines()[-2]) == (2, "error: only root's daemon can serve all users")


def test_each_user_has_separate_tokens(site, users):
    site.env["COTENANT_TCP__LISTEN"] = "127.0.0.1:0"
    start_for_all(site)
    ann, bob = (Person(site, user) for user in users)
    made = json.loads(ann.cli("token", "create", "--json").stdout)["token"]
    assert made["user"] == ann.name
    assert bob.cli("token", "list", "--no-header").stdout == ""
    assert bob.cli("token", "revoke", made["id"]).returncode == 2
    assert bob.cli("token", "create", "--user", ann.name).returncode == 5
    assert bob.cli("token", "create", "--admin").returncode == 5
    assert "no tokens for root" in site.cli("token", "create").stderr
    theirs = json.loads(site.cli("token", "create", "--user", bob.name, "--json").stdout)["token"]
    assert theirs["user"] == bob.name
    # Root's shell on another machine, with ann's token: it is ann.
    url = site.client.status()["tcp"]
    del site.env["COTENANT_SOCKET"]
    site.env |= {"COTENANT_HOST": url, "COTENANT_TOKEN": made["text"]}
    job = site.cli("submit", "--gpu-mem", "1G", "--parsable", "-D", "/", "--", "id", "-un").stdout.strip()
    assert site.cli("wait", job).returncode == 0
    assert site.cli("logs", job).stdout == f"{ann.name}\n"
    site.env["COTENANT_TOKEN"] = theirs["text"]
    assert site.cli("show", job).returncode == 5
    site.env["COTENANT_SOCKET"] = str(site.socket)
    del site.env["COTENANT_HOST"]


def test_jobs_report_steps_as_their_users_without_seeing_others(site, users):
    start_for_all(site, "--policy", "most-memory", simulate="1xA100-40GB")
    ann, bob = (Person(site, user) for user in users)
    train = (
        "--",
        site.command[0],
        "-m",
        "cotenant.simserver.fake_job",
        "--duration",
        "1e6",
        "--delay",
        "5",
        "--peak-gib",
        "1",
    )
    first = ann.submit("-D", str(ann.home), *train)
    prints = "n=0; while :; do n=$((n+1)); echo $n %, speed; sleep 0.1; done"
    second = bob.submit("--progress", r"(\d+) %, speed", "--", "sh", "-c", f"{shlex.join(train[1:])} & {prints}")
    give_up_s = time.monotonic() + 60
    rates = {}
    while len(rates) < 2:
        assert time.monotonic() < give_up_s, site.log.read_text()
        time.sleep(0.1)
        for person, job in ((ann, first), (bob, second)):
            view = site.client.job(int(job))
            lines = [co_run for one in view["attempt_list"] for co_run in one["co_runs"] if co_run["steps_hz"]]
            rates |= {person.name: lines} if lines else {}
    seen = json.loads(ann.cli("show", first, "--json").stdout)["job"]["attempt_list"][0]["co_runs"]
    assert {mate for co_run in seen for mate in co_run["neighbor_ids"]} <= {None}, (
        "that bob's job is there, but not which"
    )
    assert "beside another user's job" in ann.cli("explain", first).stdout
    (ours,) = json.loads(ann.cli("history", "--by", "user", "--json").stdout)["user"]
    assert ours["user"] == ann.name
    (work,) = json.loads(bob.cli("history", "--by", "workload", "--json").stdout)["workload"] or [{"co_runs": []}]
    assert work["co_runs"] == []
    for job in (first, second):
        site.cli("cancel", job)
        site.wait(int(job))


def test_notifications_run_as_the_user(site, users):
    site.env["COTENANT_NOTIFICATIONS__ENABLED"] = "true"
    start_for_all(site)
    ann = Person(site, users[0])
    os.mkfifo(ann.home / "told", 0o600)
    os.chown(ann.home / "told", ann.account.pw_uid, ann.account.pw_gid)
    program = (
        'echo "$(id -un) $COTENANT_JOB_ID $COTENANT_JOB_STATE $COTENANT_JOB_EXIT_CODE; $(cat /etc/shadow 2>&1)" > told'
    )
    job = ann.submit("--notify", f"cd {ann.home}; {program}", "--", "sh", "-c", "exit 3")
    said = subprocess.run(
        ["cat", str(ann.home / "told")], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert said.startswith(f"{ann.name} {job} FAILED 3; ")
    assert "Permission denied" in said
