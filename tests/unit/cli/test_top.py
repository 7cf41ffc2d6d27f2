"""The screen of `top`, driven by textual's pilot against a daemon that answers from a table."""

from __future__ import annotations

import asyncio
import builtins

import pytest

from cotenant.cli.main import main
from cotenant.core.errors import DaemonUnreachable

GiB = 2**30


def a_gpu(index=0, **changes):
    residents = [{"job_id": 1, "name": "bert [x]"}, {"job_id": None, "name": None}]
    fields = {
        "index": index,
        "uuid": f"GPU-{index}",
        "name": "A100-40GB",
        "mig_profile": None,
        "memory_total_bytes": 40 * GiB,
        "smact": 0.5,
    }
    memory = {"used_bytes": 10 * GiB, "promised_bytes": 20 * GiB, "available_bytes": 20 * GiB, "power_w": 250.0}
    return {**fields, **memory, "residents": residents, **changes}


def a_job(job_id, state="RUNNING", **changes):
    fields = {"id": job_id, "label": str(job_id), "name": f"job{job_id}", "user": "ann", "state": state}
    place = {"state_short": state[:2], "gpu_indices": [0], "gpu_uuids": ["u"], "promised_bytes": GiB, "need_bytes": GiB}
    return {**fields, **place, "observed_bytes": None, "running_s": 61.0, "reason": "because [of] it", **changes}


class Daemon:
    """What a client would say."""

    def __init__(self):
        self.jobs = [a_job(1), a_job(2, "PENDING", gpu_indices=[], gpu_uuids=[])]
        self.down = False

    def status(self):
        if self.down:
            raise DaemonUnreachable("no daemon listens on `x`")
        return {"version": "1", "policy": "most-memory", "journal_error": None}

    def gpus(self):
        return [a_gpu(0), a_gpu(1, used_bytes=None, available_bytes=None, residents=[])]

    def gpu_history(self, seconds):
        points = [{"at_s": 1000.0 + number, "seconds": 1.0, "smact": number / 300} for number in range(300)]
        return [{"index": 0, "uuid": "GPU-0", "points": points}, {"index": 1, "uuid": "GPU-1", "points": []}]

    def overview(self, **_):
        return {"jobs": self.jobs, "counts": {"RUNNING": 1, "PENDING": 1}}

    def explain(self, job_id):
        return {"reason": f"{job_id} waits", "rejections": [{"gpu": 0, "reason": "full"}]}

    def logs(self, job_id, *, stream):
        yield f"{stream} of {job_id}\n10%\r99%\n".encode()

    def _change(self, job_id, state):
        self.jobs = [{**job, "state": state} if job["id"] == job_id else job for job in self.jobs]
        return {"label": str(job_id), "reason": state.lower()}

    def cancel(self, job_id):
        return self._change(job_id, "CANCELLED")

    def hold(self, job_id):
        return self._change(job_id, "HELD")

    def release(self, job_id):
        return self._change(job_id, "PENDING")


def cells(screen, name):
    table = screen.query_one(name)
    return [[str(cell) for cell in table.get_row_at(i)] for i in range(table.row_count)]


def test_top_shows_jobs_and_follows_changes():
    pytest.importorskip("textual", reason="the extra `top` is not installed")
    from cotenant.cli.top_screen import Top

    daemon = Daemon()

    async def drive():
        screen = Top(daemon, interval_s=1000.0)
        async with screen.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            gpus = cells(screen, "#gpus")
            assert gpus[0][2] == "#" * 6 + "=" * 6 + "." * 12
            assert gpus[0][-1] == "1:bert [x] ?:another user"
            assert gpus[1][2] == "?" * 24
            assert [row[0] for row in cells(screen, "#jobs")] == ["1", "2"]
            assert cells(screen, "#jobs")[0][-1] == "because [of] it"
            assert "1 running, 1 pending" in str(screen.query_one("#title").render())
            daemon.jobs = [a_job(3, "PENDING"), a_job(5), a_job(4)]
            await screen.refresh_data()
            assert [row[0] for row in cells(screen, "#jobs")] == ["4", "5", "3"]  # what runs comes first
            await pilot.press("down", "e")
            await pilot.pause()
            assert [notification.message for notification in screen._notifications] == ["5 waits\nGPU 0: full"]
            daemon.down = True
            await screen.refresh_data()
            assert "the screen is stale" in str(screen.query_one("#title").render())
            assert len(cells(screen, "#jobs")) == 3
            await pilot.press("q")
        assert screen.return_code == 0

    asyncio.run(drive())


def driven(daemon, steps):
    """Run `steps` with the screen and its pilot."""
    pytest.importorskip("textual", reason="the extra `top` is not installed")
    from cotenant.cli.top_screen import Top

    async def drive():
        screen = Top(daemon, interval_s=1000.0)
        async with screen.run_test(size=(120, 30)) as pilot:
            await pilot.pause()
            await steps(screen, pilot)

    asyncio.run(drive())


async def until(pilot, condition):
    """Let the screen work until `condition` holds."""
    for _ in range(500):
        await pilot.pause(0.01)
        if condition():
            return
    raise AssertionError("it never came to that")


def ids(screen):
    return [row[0] for row in cells(screen, "#jobs")]


def test_a_job_is_cancelled_after_a_question():
    daemon = Daemon()
    states = lambda: {job["id"]: job["state"] for job in daemon.jobs}  # noqa: E731

    async def steps(screen, pilot):
        await pilot.press("down", "c")
        await until(pilot, lambda: len(screen.screen_stack) == 2)
        await pilot.press("n")
        await until(pilot, lambda: len(screen.screen_stack) == 1)
        assert states() == {1: "RUNNING", 2: "PENDING"}
        await pilot.press("c")
        await until(pilot, lambda: len(screen.screen_stack) == 2)
        await pilot.press("y")
        await until(pilot, lambda: states()[2] == "CANCELLED")
        assert states()[1] == "RUNNING"

    driven(daemon, steps)


def test_a_job_is_held_and_released():
    daemon = Daemon()

    async def steps(screen, pilot):
        for state in ("HELD", "PENDING"):
            await pilot.press("h") if screen._job_id == 2 else await pilot.press("down", "h")
            await until(pilot, lambda wanted=state: screen._jobs[2]["state"] == wanted)

    driven(daemon, steps)


def test_jobs_are_sorted_and_filtered_and_the_cursor_stays_on_its_job():
    daemon = Daemon()
    daemon.jobs = [a_job(1, running_s=5.0), a_job(2, running_s=9.0, user="ben"), a_job(3, promised_bytes=9 * GiB)]

    async def steps(screen, pilot):
        await pilot.press("down")
        orders = []
        for _ in range(5):
            await pilot.press("s")
            await pilot.pause()
            orders.append(ids(screen))
            assert screen._job_id == 2
        assert orders[:3] == [["3", "1", "2"], ["3", "2", "1"], ["1", "3", "2"]]  # by memory, time, user
        await pilot.press("slash", "b", "e", "n", "enter")
        assert ids(screen) == ["2"]
        assert "only `ben`: 1 of 3" in str(screen.query_one("#title").render())
        await pilot.press("escape")
        assert ids(screen) == ["1", "2", "3"]

    driven(daemon, steps)


def test_output_is_shown_and_its_stream_switched():
    daemon = Daemon()

    async def steps(screen, pilot):
        def lines():
            return [strip.text.rstrip() for strip in screen.screen.query_one("#output").lines]

        await pilot.press("l")
        await until(pilot, lambda: len(screen.screen_stack) == 2 and lines() == ["stdout of 1", "99%"])
        await pilot.press("e")
        await until(pilot, lambda: lines() == ["stderr of 1", "99%"])
        await pilot.press("escape")
        await until(pilot, lambda: len(screen.screen_stack) == 1)

    driven(daemon, steps)


def test_help_lists_every_key():
    from cotenant.cli.top_screen import KEYS, Top

    async def steps(screen, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: len(screen.screen_stack) == 2)
        await pilot.press("escape")
        await until(pilot, lambda: len(screen.screen_stack) == 1)

    driven(Daemon(), steps)
    names = {"question_mark": "?", "slash": "/", "escape": "Escape"}
    assert {names.get(binding[0], binding[0]) for binding in Top.BINDINGS} <= {key for key, _ in KEYS}


def test_top_without_textual_names_the_extra_to_install(monkeypatch, capsys):
    monkeypatch.setattr("cotenant.cli.common.Connection.client", lambda _: Daemon())
    real = builtins.__import__

    def without(name, *args):
        if name.partition(".")[0] == "textual":
            raise ModuleNotFoundError("No module named 'textual'", name="textual")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(__import__("sys").modules, "cotenant.cli.top_screen", raising=False)
    assert main(["top"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: `cotenant top` needs textual",
        'hint: pip install "cotenant[top]"',
    ]


def test_top_without_a_terminal_is_refused(monkeypatch, capsys):
    """It wrote its screen's control sequences to stderr, and ended by SIGHUP."""
    monkeypatch.setattr("cotenant.cli.common.Connection.client", lambda _: Daemon())
    assert main(["top"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: `cotenant top` needs a terminal",
        "hint: `cotenant top --json` prints one snapshot",
    ]
