"""A headless Chromium on the page of a real daemon. Skips, with the reason, where there is none.

`$COTENANT_AXE` names axe-core's `axe.min.js` (`npm install axe-core`); without it, accessibility is not checked.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from sites import TIMEOUT_S, open_site

CHROMIUM = os.environ.get("COTENANT_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def chromium():
    """The browser. It ends with its module: playwright's event loop is this thread's, and others need their own."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, which drives the browser")
    pytest.importorskip("jinja2", reason="the page needs cotenant[web]")
    if CHROMIUM is None:
        pytest.skip("no Chromium on PATH; $COTENANT_CHROMIUM names one")
    with sync_api.sync_playwright() as playwright:
        # Root's Chromium needs --no-sandbox; the page is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] * (os.geteuid() == 0))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def axe():
    """The source of axe-core."""
    path = os.environ.get("COTENANT_AXE")
    if path is None or not Path(path).exists():
        pytest.skip("$COTENANT_AXE names no axe.min.js")
    return Path(path).read_text()


@pytest.fixture(scope="module")
def web():
    """A site with a daemon that serves the page, 4 GPUs, and some jobs in each state."""
    with open_site() as site:
        site.start("--web", "127.0.0.1:0", simulate="4xA100-40GB")
        site.url = site.client.status()["web"]
        site.token = site.client.create_token(name="browser", admin=True, user=None, lifetime_s=None)["text"]
        gate = site.gate()
        site.done = site.submit("echo one; echo two", name="short")
        site.wait(site.done)
        site.running = site.submit(f"echo begun; {gate}", name="train-resnet", declared_bytes=24 * 2**30)
        site.started(site.running)
        for number in range(6):
            site.submit("true", name=f"big-{number}", declared_bytes=39 * 2**30, gpus=4, hold=True)
        site.waiting = site.submit("true", name="<b>hostile</b>", hold=True)
        yield site
        site.open_gate(gate)


@pytest.fixture
def page(chromium, web):
    """A page that is logged in; afterwards no script may have failed, and nothing may have been blocked."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900}, base_url=web.url)
    context.set_default_timeout(TIMEOUT_S * 1000)
    found = context.new_page()
    found.problems = []
    found.on("pageerror", lambda error: found.problems.append(str(error)))
    found.on(
        "console", lambda message: found.problems.append(message.text) if "Security Policy" in message.text else None
    )
    log_in(found, web)
    yield found
    assert found.problems == []
    context.close()


def log_in(page, web):
    page.goto("/login")
    page.fill("#token", web.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{web.url}/")


@pytest.fixture
def site():
    """A site without a daemon."""
    with open_site() as site:
        yield site
