"""The connection to an agent, with processes that take its place."""

from __future__ import annotations

import subprocess
import threading

from cotenant.hosts.link import HostLink


def test_an_agent_that_is_just_being_started_ends_when_its_link_is_closed(tmp_path, monkeypatch):
    starting, closing, started = threading.Event(), threading.Event(), []
    popen = subprocess.Popen

    def start(*arguments, **options):
        starting.set()
        assert closing.wait(60)
        started.append(popen(*arguments, **options))
        return started[0]

    link = HostLink(
        "n1", ["cat"], tmp_path / "n1.log", silent_after_s=1000, on_up=lambda *_: None, on_message=lambda *_: None
    )
    monkeypatch.setattr(subprocess, "Popen", start)
    link.start()
    assert starting.wait(60)
    monkeypatch.setattr(link._closing, "set", lambda: (threading.Event.set(link._closing), closing.set()))
    link.close()
    assert started[0].wait(60) == 0  # it has read the end of its stdin
