"""The web page of a real daemon, as `cotenant web` and as `cotenant daemon --web` serve it, over HTTP."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import pwd
import select
import signal
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="the page needs cotenant[web]")

from people import Person, made_users, needs_users, open_to_users, start_for_all
from sites import TIMEOUT_S, open_site
from web_client import WebClient

NAMES = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus='alert(1)",
    "{{ 7*7 }}{% raw %}",
    "javascript:alert(1)",
    "</title></svg></pre><iframe>",
    "&lt;b&gt;&amp;",
    "${7*7}\\u003cscript\\u003e",
)
TAGS = (
    "article section h2 h3 small b i p a g ul ol li dl dt dd div nav form label input select option button table"
    " caption thead tbody tr th td time span code pre br svg rect path text title footer"
)


@contextlib.contextmanager
def local_page(site, *options):
    """`cotenant web`, and the address that it printed."""
    process = site.popen("web", "--no-browser", *options)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.communicate(timeout=TIMEOUT_S)
        yield address
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0


@contextlib.contextmanager
def opened(address):
    """A browser that used the address."""
    page = WebClient(address)
    try:
        assert page.get(address.removeprefix(page.base)).status_code == 200
        yield page
    finally:
        page.close()


@pytest.fixture(scope="module")
def shared():
    """A site with a daemon, `cotenant web`, and a browser on it."""
    with open_site() as site:
        site.start("--web", "127.0.0.1:0")
        with local_page(site) as address, opened(address) as page:
            site.address, site.page = address, page
            yield site


class Parsed(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_address_opens_once_and_nobody_else_gets_in(shared):
    other = WebClient(shared.address)
    key = shared.address.removeprefix(other.base)
    assert other.get(key).status_code == 403
    for path in ("/", "/jobs", "/usage.csv", "/submit"):
        answer = other.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert other.login("cot_00000000_x").status_code == 403
    assert other.http.post("/jobs/1/cancel", data={"csrf": shared.page.csrf()}).headers["location"] == "/login"
    with other.events("/now/events") as events:
        assert next(events) == ("gone", {})
    other.close()


def test_every_answer_forbids_inline_script_and_other_sites(shared):
    for path in ("/", "/login", "/static/live.js", "/static/page.css", "/nothing", "/jobs/999999"):
        answer = shared.page.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        page = Parsed(answer.text if "html" in answer.headers["content-type"] else "")
        for tag, attributes in page.elements:
            assert tag != "style"
            assert not [name for name in attributes if name.startswith("on") or name == "style"], (path, tag)
            source = attributes.get("src") or (attributes.get("href") if tag == "link" else None)
            assert source is None or source.startswith("/"), source
            assert tag != "script" or source


def test_a_rebound_name_gets_nothing(shared):
    answer = shared.page.get("/", headers={"host": "evil.example"})
    assert answer.status_code == 403
    assert "Queue" not in answer.text


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_a_job_is_text_on_every_page(shared, name):
    held = shared.submit("true", name=name, hold=True)
    done = shared.submit(f"printf %s '{name.replace(chr(39), '')}' >&2; exit 3", name=name)
    shared.wait(done)
    paths = (
        "/",
        "/jobs",
        f"/jobs?name={held}",
        f"/jobs/{held}",
        f"/jobs/{done}",
        f"/jobs/{done}/log?stream=stderr",
        f"/jobs/{held}/cancel",
        f"/jobs/{held}/change",
        "/usage",
        "/history?hours=1",
    )
    plain = Parsed(shared.page.get("/login").text).elements
    allowed = {tag for tag, _ in plain} | {*TAGS.split()}
    for path in paths:
        answer = shared.page.get(path)
        assert answer.status_code == 200, (path, answer.text)
        page = Parsed(answer.text)
        assert {tag for tag, _ in page.elements} <= allowed, path
        assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on") or a == "autofocus"]
        assert not [a for _, a in page.elements if (a.get("href") or "").startswith("javascript:")]
    assert name in Parsed(shared.page.get(f"/jobs/{held}").text).text
    shared.client.cancel(held)


def test_a_job_is_estimated_submitted_watched_and_cancelled(shared):
    gate = shared.gate()
    form = {
        "command": f"sh -c 'echo begun; {gate}'",
        "workdir": str(shared.root),
        "memory": "2G",
        "gpus": "1",
        "name": "by-page",
    }
    answer = shared.page.post("/submit", **form)
    draft = answer.headers["location"]
    deadline_s = time.monotonic() + TIMEOUT_S
    while "Estimating" in (text := shared.page.get(draft).text):
        assert time.monotonic() < deadline_s
    assert "It declares 2.0 GiB per GPU" in text
    assert "It would start now on GPU" in text
    where = shared.page.post(draft).headers["location"]
    job_id = int(where.rpartition("/")[2])
    shared.started(job_id)
    with shared.page.events(f"{where}/log/events") as events:
        assert next(events) == ("text", {"text": "begun\n", "restart": True})
    with shared.page.events(f"{where}/events") as events:
        name, parts = next(events)
        assert name == "update"
        assert "running" in parts["job-state"]
        assert shared.page.post(f"{where}/cancel").headers["location"] == where
        while "cancelled" not in parts.get("job-state", ""):
            _, parts = next(events)
    assert shared.wait(job_id)["state"] == "CANCELLED"
    shared.open_gate(gate)


def test_changes_without_the_sessions_token_are_refused(shared):
    job_id = shared.submit("true", hold=True)
    other = shared.page.http.post
    for fields, headers in (
        ({}, {}),
        ({"csrf": "x"}, {}),
        ({"csrf": shared.page.csrf()}, {"origin": "http://evil.example"}),
        ({"csrf": shared.page.csrf()}, {"sec-fetch-site": "cross-site"}),
    ):
        assert other(f"/jobs/{job_id}/cancel", data=fields, headers=headers).status_code == 403
        assert other("/submit", data={"command": "true", "workdir": "/", **fields}, headers=headers).status_code == 403
    assert shared.page.get(f"/jobs/{job_id}/cancel").status_code == 200  # asks, and does nothing
    assert shared.client.job(job_id)["state"] == "HELD"
    assert shared.page.post(f"/jobs/{job_id}/change", name="renamed", priority="-3").status_code == 303
    view = shared.client.job(job_id)
    assert (view["name"], view["priority"], view["state"]) == ("renamed", -3, "HELD")
    assert shared.page.post(f"/jobs/{job_id}/change", priority="much").status_code == 400
    assert shared.page.post(f"/jobs/{job_id}/release").status_code == 303
    shared.wait(job_id)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": "'", "workdir": "/"},
        {"command": " ", "workdir": "/"},
        {"command": "true", "workdir": "relative"},
        {"command": "true", "workdir": "/", "gpus": "many"},
        {"command": "true", "workdir": "/", "memory": "-1"},
        {"command": "true", "workdir": "/", "environment": "no equals"},
    ],
)
def test_a_wrong_form_says_so_and_keeps_what_was_written(shared, fields):
    answer = shared.page.post("/submit", **fields)
    assert answer.status_code == 400
    page = Parsed(answer.text)
    values = {a.get("name"): a.get("value") for tag, a in page.elements if tag == "input"}
    assert values["command"] == fields["command"]
    assert [a for _, a in page.elements if a.get("role") == "alert"]


def test_usage_is_exported(shared):
    shared.wait(shared.simulated("--workload", "mnist_bs32", gib=4))
    for by, column in (("user", "gpu_s"), ("day", "gpu_s"), ("workload", "runs")):
        answer = shared.page.get(f"/usage.csv?by={by}&days=1")
        rows = list(csv.DictReader(io.StringIO(answer.text)))
        assert answer.headers["content-type"].startswith("text/csv")
        assert rows
        assert float(rows[-1][column]) > 0
        assert [row[by] for row in rows] == [row[by] for row in shared.client.usage(by)]
    assert shared.page.get("/usage.csv?by=nothing").status_code == 400


def test_a_page_says_when_the_daemon_is_gone_and_goes_on_when_it_is_back(site):
    site.start()
    with local_page(site) as address, opened(address) as page, page.events("/now/events") as events:
        name, parts = next(events)
        assert (name, "alarm" in parts["banner"]) == ("update", False)
        site.kill()
        while "alarm" not in parts.get("banner", ""):
            _, parts = next(events)
        assert page.get("/").status_code == 200  # the numbers of before
        site.start()
        while "alarm" in parts.get("banner", "alarm"):
            _, parts = next(events)


def test_a_read_only_page_changes_nothing(site):
    site.start()
    job_id = site.submit("true", hold=True)
    with local_page(site, "--read-only") as address, opened(address) as page:
        assert "Submit" not in page.get("/").text
        assert page.get(f"/jobs/{job_id}/cancel").status_code == 403
        csrf = page.csrf("/submit")
        assert page.post(f"/jobs/{job_id}/cancel", csrf=csrf).status_code == 403
        assert page.post("/submit", csrf=csrf, command="true", workdir="/").status_code == 403
    assert site.client.job(job_id)["state"] == "HELD"


def test_the_daemons_page_requires_a_token_and_forgets_it_when_it_is_revoked(shared):
    page = WebClient(shared.client.status()["web"])
    assert page.get("/").headers["location"] == "/login"
    token = shared.client.create_token(name="page", admin=True, user=None, lifetime_s=None)
    assert page.login("cot_00000000_" + "x" * 43).status_code == 403
    answer = page.login(token["text"])
    assert answer.headers["location"] == "/"
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert token["text"] not in answer.headers["set-cookie"]
    assert page.get("/").status_code == 200
    with page.events("/now/events") as events:
        assert next(events)[0] == "update"
        shared.client.revoke_token(token["id"])
        while next(events)[0] != "gone":
            pass
    assert page.get("/jobs").headers["location"] == "/login"
    page.close()


def test_a_logout_ends_the_session(shared):
    token = shared.client.create_token(name="page", admin=True, user=None, lifetime_s=None)
    page = WebClient(shared.client.status()["web"])
    page.login(token["text"])
    cookies = dict(page.http.cookies)
    assert page.http.post("/logout", data={}).status_code == 403
    assert page.post("/logout").headers["location"] == "/login"
    page.http.cookies.update(cookies)
    assert page.get("/").headers["location"] == "/login"
    page.close()


def test_the_pages_process_ends_with_a_daemon_that_is_killed(site):
    site.start("--web", "127.0.0.1:0")
    (child,) = _page_processes(site)
    watched = os.pidfd_open(child)
    site.kill()
    assert _has_ended(watched)


def test_a_page_process_that_dies_is_started_again(site):
    site.set_constant("cotenant.daemon.web_process", "RESTART_S", 0.1)
    site.start("--web", "127.0.0.1:0")
    (child,) = _page_processes(site)
    os.kill(child, signal.SIGKILL)
    deadline_s = time.monotonic() + TIMEOUT_S
    while (found := _page_processes(site)) in ([], [child]):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    assert found != [child]


def test_an_address_that_is_taken_stops_the_start(site, shared):
    port = shared.client.status()["web"].rpartition(":")[2]
    done = site.cli("daemon", "--simulate", "1xA100-40GB", "--web", f"127.0.0.1:{port}")
    assert done.returncode != 0
    assert f"cannot listen on `127.0.0.1:{port}`" in done.stderr
    assert site.cli("daemon", "--simulate", "1xA100-40GB", "--web", "0.0.0.0:0").returncode == 2


@needs_users
def test_users_see_their_own_jobs_and_the_process_has_no_rights(site):
    open_to_users(site)
    with made_users(2) as accounts:
        start_for_all(site, "--web", "127.0.0.1:0")
        ann, bob = (Person(site, account) for account in accounts)
        (child,) = _page_processes(site)
        nobody = pwd.getpwnam("nobody").pw_uid
        status = Path(f"/proc/{child}/status").read_text()
        assert f"Uid:\t{nobody}\t{nobody}\t{nobody}\t{nobody}\n" in status
        assert "CapEff:\t0000000000000000" in status
        job = ann.submit("-J", "anns-secret", "--hold", "--", "true")
        pages = {}
        for person in (ann, bob):
            made = person.cli("token", "create")
            assert made.returncode == 0, made.stderr
            pages[person.name] = WebClient(site.client.status()["web"])
            pages[person.name].login(made.stdout.split()[0])
        anns, bobs = pages[ann.name], pages[bob.name]
        assert "anns-secret" in anns.get("/jobs").text
        for path in ("/", "/jobs", "/usage", "/history"):
            answer = bobs.get(path)
            assert answer.status_code == 200
            assert "anns-secret" not in answer.text
        assert bobs.get(f"/jobs/{job}").status_code == 403
        assert bobs.post(f"/jobs/{job}/cancel").status_code == 403
        assert site.client.job(int(job))["state"] == "HELD"
        submitted = anns.post(
            "/submit", command="sh -c 'id -un; echo $HOME'", workdir=str(ann.home), memory="1G", name="mine"
        )
        draft = submitted.headers["location"]
        while "Estimating" in anns.get(draft).text:
            pass
        mine = int(anns.post(draft).headers["location"].rpartition("/")[2])
        site.wait(mine)
        assert b"".join(site.client.logs(mine)).decode().split() == [ann.name, str(ann.home)]
        for page in pages.values():
            page.close()


def _page_processes(site):
    """Processes of the page that the site's daemon started."""
    command = ["pgrep", "-P", str(site.daemon.pid), "-f", "cotenant.web"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def _has_ended(descriptor):
    try:
        return bool(select.select([descriptor], [], [], TIMEOUT_S)[0])
    finally:
        os.close(descriptor)
