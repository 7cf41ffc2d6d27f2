"""Screenshots of the web page for the documents: a simulated server with the 60 jobs of a published trace.

    python scripts/web_screenshots.py [--folder docs/images] [--done 20]

Needs playwright and a Chromium ($COTENANT_CHROMIUM, or one on PATH). The jobs are real processes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from cotenant.core.errors import DaemonUnreachable
from cotenant.daemon.client import Client
from cotenant.sim import traces

TIME_SCALE = 120.0
ARRIVALS = 0.15
"""Share of the trace's times between submissions: a queue forms at once."""
START_S = 60.0


def main() -> int:
    """Make the screenshots; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--done", type=int, default=10, help="jobs that have ended by then")
    options = parser.parse_args()
    chromium = os.environ.get("COTENANT_CHROMIUM") or shutil.which("chromium")
    if chromium is None:
        print("no Chromium on PATH; $COTENANT_CHROMIUM names one", file=sys.stderr)
        return 1
    root = Path(tempfile.mkdtemp(prefix="cotenant-shots-"))
    command = [sys.executable, "-m", "cotenant", "daemon", "--simulate", "4xA100-40GB", "--policy", "most-memory"]
    command += ["--time-scale", f"{TIME_SCALE:g}", "--tick", "0.5", "--web", "127.0.0.1:0"]
    command += ["--socket", str(root / "sock"), "--state-dir", str(root / "state"), "--log-level", "warning"]
    daemon = subprocess.Popen(command)
    client = Client(root / "sock", timeout_s=60.0)
    try:
        _await(client)
        _submit(client)
        while client.status()["jobs"].get("COMPLETED", 0) < options.done:
            time.sleep(1.0)
        token = client.create_token(name="screenshots", admin=True, user=None, lifetime_s=None)["text"]
        options.folder.mkdir(parents=True, exist_ok=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"] * (os.geteuid() == 0))
            _shoot(browser, client, token, options.folder)
            browser.close()
    finally:
        for job in client.jobs(active=True):
            client.cancel(job["id"])
        client.shutdown()
        daemon.wait(60.0)
        shutil.rmtree(root, ignore_errors=True)
    return 0


def _await(client: Client) -> None:
    end_s = time.monotonic() + START_S
    while True:
        try:
            client.status()
        except DaemonUnreachable:
            if time.monotonic() > end_s:
                raise
            time.sleep(0.2)
        else:
            return


def _submit(client: Client) -> None:
    """Submit the trace at its times."""
    began_s = time.monotonic()
    for job in traces.load("t1"):
        time.sleep(max(0.0, began_s + job.submit_s * ARRIVALS / TIME_SCALE - time.monotonic()))
        client.submit(
            [
                {
                    "command": ["python", "-m", "cotenant.simserver.fake_job", "--workload", job.workload],
                    "workdir": "/",
                    "env": {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                    "name": job.workload,
                    "gpus": job.gpus,
                    "declared_bytes": job.profile.reported_bytes["cotenant"],
                }
            ]
        )


def _shoot(browser: Browser, client: Client, token: str, folder: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 860}, base_url=client.status()["web"])
    page = context.new_page()
    page.goto("/login")
    _save(page, folder, "login")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#totals")
    _save(page, folder, "now")
    running = client.jobs(states="RUNNING")
    waiting = client.jobs(states="PENDING", limit=1)
    paths = {"usage": "/usage", "jobs": "/jobs", "submit": "/submit"}
    if running:
        paths["job"] = f"/jobs/{running[0]['id']}"
    if waiting:
        paths["waiting"] = f"/jobs/{waiting[0]['id']}"
    for name, path in paths.items():
        page.goto(path)
        _save(page, folder, name)
    page.goto("/history?hours=1")
    _save(page, folder, "history")
    context.close()


def _save(page: Page, folder: Path, name: str) -> None:
    page.wait_for_timeout(300)
    page.screenshot(path=folder / f"web-{name}.png")


if __name__ == "__main__":
    sys.exit(main())
