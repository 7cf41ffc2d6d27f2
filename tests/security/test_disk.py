"""A full disk refuses submissions and takes cancellations; a removed folder of an attempt loses no result."""

from __future__ import annotations

import shutil
import subprocess
import time

import pytest

from cotenant.core.errors import CotenantError
from people import Person, start_for_all
from places import until


@pytest.fixture
def small_disk(site):
    """The state folder on a file system of 32 MiB."""
    folder = site.root / "state"
    folder.mkdir(mode=0o755)
    site.set_constant("cotenant.daemon.journal_writer", "RESERVE_RETRY_S", 0.2)
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m,mode=755", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        if site.daemon is not None and site.daemon.poll() is None:
            for view in site.client.jobs(active=True):
                site.client.cancel(view["id"])
            for view in site.client.jobs():
                site.wait(view["id"])
            site.stop()
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """A file that leaves no block of the disk free."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return path


def test_a_full_disk_takes_cancellations_and_no_submissions(site, users, small_disk):
    start_for_all(site)
    ann = Person(site, users[0])
    running, waiting = ann.submit("--", "sleep", "600"), ann.submit("--hold", "--", "true")
    site.started(int(running))
    filler = fill(small_disk)
    for _ in range(20):  # a page or two may have been left in the journal's files
        refused = ann.cli("submit", "--gpu-mem", "1G", "--hold", "--", "true")
        if refused.returncode:
            break
    assert refused.returncode == 1
    assert "database or disk is full" in refused.stderr
    for job_id in (waiting, running):
        done = ann.cli("cancel", job_id)
        assert done.returncode == 0, done.stderr
    assert site.wait(int(running))["state"] == "CANCELLED"
    assert site.client.job(int(waiting))["state"] == "CANCELLED"
    assert "full" in site.client.status()["journal_error"]
    still = ann.cli("submit", "--gpu-mem", "1G", "--", "true")
    assert still.returncode == 1, "the reserve is not for submissions"
    site.kill()
    start_for_all(site)
    assert site.client.job(int(waiting))["state"] == "CANCELLED", "it was on disk"
    assert site.client.job(int(running))["state"] == "CANCELLED"
    filler.unlink()
    deadline_s = time.monotonic() + 60
    while True:
        try:
            job_id = site.submit("true")
            break
        except CotenantError:
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
    assert site.wait(job_id)["state"] == "COMPLETED"


def is_removed(folder):
    """Remove a folder; False where its runner has just added a file."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def test_a_removed_attempt_folder_loses_no_result_and_no_cancellation(people, site):
    ann, gate = people[0], site.gate()
    ending, endless = ann.submit("--", "sh", "-c", f"{gate}; exit 3"), ann.submit("--", "sleep", "600")
    for job_id in (ending, endless):
        site.started(int(job_id))
        folder = site.root / "state" / "cotenant" / "attempts" / job_id
        until(lambda folder=folder: is_removed(folder), "its runner writes nothing more")
    site.open_gate(gate)
    view = site.wait(int(ending))
    assert (view["state"], view["exit_code"]) == ("FAILED", 3)
    assert ann.cli("cancel", endless).returncode == 0
    assert site.wait(int(endless))["state"] == "CANCELLED"


def test_the_output_of_one_user_leaves_the_disk_to_others(site, users, small_disk):
    start_for_all(site)
    ann, ben = (Person(site, account) for account in users[:2])
    # Ann may write nothing to `/`, so the daemon keeps the output: 24 times 3 MiB, two jobs at a time.
    script = "head -c 3145728 /dev/zero; echo the end"
    made = ann.cli(
        "submit", "--gpu-mem", "30G", "--chdir", "/", "--array", "0-23", "--parsable", "--", "sh", "-c", script
    )
    assert made.returncode == 0, made.stderr
    views = [site.wait(view["id"]) for view in site.client.jobs()]
    assert len(views) == 24
    assert {view["state"] for view in views} == {"COMPLETED"}
    assert shutil.disk_usage(small_disk).free > 8 * 2**20
    newest = b"".join(site.client.logs(views[-1]["id"], stream="stdout"))
    assert newest.endswith(b"the end\n"), "the newest output stays"
    refused = ann.cli("submit", "--gpu-mem", "1G", "--", "true")
    assert refused.returncode != 0
    assert "output of your jobs takes" in refused.stderr
    assert site.wait(int(ben.submit("--chdir", "/", "--", "true")))["state"] == "COMPLETED"
