"""Which jobs run again, and when: time slices, retries on request, and crash-looping jobs."""

from __future__ import annotations

import time

CHECKPOINTS = """
[ -e saved ] && read count < saved || count=0
trap 'echo $count > saved; echo "saved $count"; exit 0' TERM
echo "from $count"
while [ ! -e finish ]; do count=$((count+1)); sleep 0.1; done
echo finished
"""


def test_a_job_is_checkpointed_and_requeued_after_its_time_slice(site):
    site.env["COTENANT_SCHEDULING__STOP_GRACE_S"] = "60"  # its handler has to end by itself
    site.start(simulate="1xA100-40GB")
    long = site.submit("sh", "-c", CHECKPOINTS, "sh", exclusive=True, time_slice_s=1.0)
    site.started(long)
    give_up_s = time.monotonic() + 60
    while b"".join(site.client.logs(long)) != b"from 0\n":  # its trap is set
        assert time.monotonic() < give_up_s
        time.sleep(0.02)
    short = site.submit("true", exclusive=True)
    assert site.wait(short)["state"] == "COMPLETED"
    assert site.client.job(long)["state"] != "COMPLETED"
    (site.root / "finish").touch()
    view = site.wait(long)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    first, second = (site.cli("logs", "--attempt", str(n), str(long)).stdout.splitlines() for n in (1, 2))
    saved = first[-1].removeprefix("saved ")
    assert int(saved) > 0
    assert (first[0], second) == ("from 0", [f"from {saved}", "finished"])
    assert "time slice over" in site.cli("events", str(long)).stdout


def test_a_time_slice_ends_no_attempt_while_no_job_waits(site):
    site.start(simulate="1xA100-40GB")
    long = site.submit("sleep 1", exclusive=True, time_slice_s=0.1)
    view = site.wait(long)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 1)


def test_a_failure_is_retried_only_on_request(server):
    script = 'echo x >> "tries-$COTENANT_JOB_ID"; [ $(wc -l < "tries-$COTENANT_JOB_ID") -ge 2 ] || exit 9'
    retried, plain = server.submit(script, retries=1), server.submit(script)
    view = server.wait(retried)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    view = server.wait(plain)
    assert (view["state"], view["exit_code"], view["attempts"]) == ("FAILED", 9, 1)


def test_a_crash_looping_job_stops_and_the_queue_continues(server):
    job = server.submit("exit 9", retries=50)
    after = server.submit("true", after_any=[job])
    view = server.wait(job)
    assert (view["state"], view["attempts"]) == ("FAILED", 2)
    assert "twice within a minute of the start: not retried" in view["reason"]
    assert server.wait(after)["state"] == "COMPLETED"
