"""Replays from the history page of a real daemon: of what the user may see, by the simulator."""

from __future__ import annotations

import base64
import hashlib
import re
import time

import pytest

pytest.importorskip("jinja2", reason="the page needs cotenant[web]")

from people import Person, made_users, needs_users, open_to_users, start_for_all
from sites import TIMEOUT_S
from web_client import WebClient


def report_of(page, where):
    """The answer with the report of a replay, once it is over."""
    give_up_s = time.monotonic() + 2 * TIMEOUT_S
    while "loads itself again" in (text := page.get(where).text):
        assert time.monotonic() < give_up_s, text
        time.sleep(0.3)
    return page.get(f"{where}/report")


@needs_users
def test_a_replay_shows_what_its_user_may_see(site):
    open_to_users(site)
    with made_users(2) as accounts:
        start_for_all(site, "--web", "127.0.0.1:0")
        ann, bob = (Person(site, account) for account in accounts)
        works = (site.command[0], "-m", "cotenant.simserver.fake_job", "--delay", "5", "--duration", "60")
        named = ((ann, "anns-<b>secret"), (ann, "anns-other"), (bob, "bobs"))
        for job in [person.submit("-J", name, "--", *works) for person, name in named]:
            site.wait(int(job))
        pages = {}
        for person in (ann, bob):
            made = person.cli("token", "create")
            pages[person.name] = WebClient(site.client.status()["web"])
            pages[person.name].login(made.stdout.split()[0])
        anns, bobs = pages[ann.name], pages[bob.name]
        form = {"policy": "exclusive", "hours": "1"}
        csrf = anns.csrf("/history")
        assert anns.post("/history/replay", csrf="x", **form).status_code == 403
        assert anns.post("/history/replay", csrf=csrf, **{**form, "policy": "<b>"}).status_code == 400
        assert anns.post("/history/replay", csrf=csrf, **{**form, "hours": "1e9"}).status_code == 400

        where = anns.post("/history/replay", csrf=csrf, **form).headers["location"]
        assert bobs.get(where).status_code == 400
        answer = report_of(anns, where)
        assert answer.status_code == 200, anns.get(where).text
        assert "2 jobs" in answer.text
        assert "most-memory" in answer.text
        assert "exclusive" in answer.text
        assert "secret" not in re.sub("&lt;b&gt;secret", "", answer.text)  # a name is text
        style = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        policy = answer.headers["content-security-policy"]
        assert f"style-src 'sha256-{digest}'" in policy
        assert "default-src 'none'" in policy
        assert not re.search(r"<script|\sstyle=|\son\w+=|(?:src|href)=", answer.text)

        where = bobs.post("/history/replay", **{"csrf": bobs.csrf("/history"), **form}).headers["location"]
        report = report_of(bobs, where).text
        assert "1 job" in report
        assert "anns" not in report
        for page in pages.values():
            page.close()
