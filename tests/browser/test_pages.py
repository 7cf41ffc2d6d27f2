"""Every page in a real browser: it fits, is accessible, follows the server, works by keyboard and without scripts."""

from __future__ import annotations

import pytest

from sites import TIMEOUT_S


def paths(web):
    return (
        "/",
        "/jobs",
        "/usage",
        "/history?hours=1",
        "/submit",
        f"/jobs/{web.running}",
        f"/jobs/{web.waiting}",
        f"/jobs/{web.done}/log",
        f"/jobs/{web.waiting}/cancel",
        f"/jobs/{web.waiting}/change",
    )


@pytest.mark.parametrize("width", [1440, 390])
def test_no_page_is_wider_than_the_window(page, web, width):
    page.set_viewport_size({"width": width, "height": 900})
    for path in paths(web):
        page.goto(path)
        root = "document.documentElement"
        assert page.evaluate(f"{root}.scrollWidth - {root}.clientWidth") <= 0, path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(chromium, web, axe, scheme):
    # axe-core is put into the page from outside, which its policy forbids.
    context = chromium.new_context(base_url=web.url, color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.goto("/login")
    found = {"/login": audit(page, axe)}
    page.fill("#token", web.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{web.url}/")
    for path in paths(web):
        page.goto(path)
        found[path] = audit(page, axe)
    context.close()
    assert {path: problems for path, problems in found.items() if problems} == {}


def audit(page, axe):
    page.evaluate(axe)
    violations = page.evaluate("axe.run()")["violations"]
    return [
        (violation["id"], violation["nodes"][0]["html"])
        for violation in violations
        if violation["impact"] in ("serious", "critical")
    ]


def test_a_job_is_submitted_watched_and_cancelled_with_the_keyboard_alone(page, web):
    page.goto("/submit")
    gate = web.gate()
    fields = (
        ("command", f"sh -c 'echo step 1; {gate}'"),
        ("workdir", str(web.root)),
        ("name", "by-keyboard"),
        ("gpus", ""),
        ("memory", "1G"),
    )
    tab_to(page, "command")
    for name, text in fields:
        assert focused(page) == name
        page.keyboard.type(text)
        page.keyboard.press("Tab")
    tab_to(page, "Estimate")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Submit by-keyboard?")
    tab_to(page, "Submit job")
    page.keyboard.press("Enter")
    page.wait_for_selector("#job-state .state.running")
    job_id = int(page.url.rpartition("/")[2])
    tab_to(page, "Output")
    page.keyboard.press("Enter")
    page.wait_for_function("document.getElementById('log').textContent.includes('step 1')")
    page.go_back()
    page.wait_for_selector("#job-state")
    tab_to(page, "Cancel…")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job_id}/cancel")
    tab_to(page, f"Cancel job {job_id}")
    page.keyboard.press("Enter")
    page.wait_for_selector("#job-state .state.cancelled")
    assert web.wait(job_id)["state"] == "CANCELLED"
    web.open_gate(gate)


def tab_to(page, name):
    """Press Tab until the focus is on the control with this id or text."""
    for _ in range(80):
        if focused(page) == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not lead to `{name}`")


def focused(page):
    return page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()")


def test_the_page_follows_the_server_and_keeps_the_focus(page, web):
    page.goto("/")
    page.focus(f"a[href='/jobs/{web.running}']")
    job_id = web.submit("true", name="fresh", hold=True)
    page.wait_for_selector(f"#queue a[href='/jobs/{job_id}']")
    assert page.evaluate("document.activeElement.getAttribute('href')") == f"/jobs/{web.running}"
    web.client.cancel(job_id)
    page.wait_for_selector(f"#queue a[href='/jobs/{job_id}']", state="detached")


def test_a_replay_ends_with_a_report_that_has_its_styles(page):
    page.goto("/history?hours=1")
    tab_to(page, "policy")
    page.keyboard.type("exclusive")
    tab_to(page, "Replay")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Open the report")
    tab_to(page, "Open the report")
    page.keyboard.press("Enter")
    page.wait_for_selector("h2:has-text('Policies side by side')")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "1180px"


def test_names_are_text_after_an_update_too(page, web):
    page.goto("/")
    name = "<img src=x onerror=document.title=1>"
    job_id = web.submit("true", name=name, hold=True)
    link = page.wait_for_selector(f"#queue a[href='/jobs/{job_id}']")
    assert name in link.text_content()
    assert page.query_selector("main img") is None
    web.client.cancel(job_id)


def test_without_javascript_the_numbers_are_the_same(chromium, web):
    context = chromium.new_context(base_url=web.url, java_script_enabled=False)
    context.set_default_timeout(TIMEOUT_S * 1000)
    page = context.new_page()
    page.goto("/login")
    page.fill("#token", web.token)
    page.click("main button")
    text = page.text_content("main")
    assert "train-resnet" in text
    assert "24.0 GiB" in text
    assert "<b>hostile</b>" in text
    page.goto(f"/jobs/{web.done}/log")
    assert page.text_content("#log") == "one\ntwo\n"
    page.goto(f"/jobs/{web.waiting}/change")
    page.fill("#priority", "-7")
    page.click("main button")
    assert web.client.job(web.waiting)["priority"] == -7
    context.close()


def test_a_page_lives_through_a_restart_of_the_daemon(chromium, site):
    """With `cotenant web`: its process stays, and says what it cannot show."""
    site.start()
    process = site.popen("web", "--no-browser")
    address = process.stdout.readline().strip()
    context = chromium.new_context()
    context.set_default_timeout(TIMEOUT_S * 1000)
    try:
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("#totals")
        site.kill()
        page.wait_for_selector("#banner .alarm")
        site.start()
        page.wait_for_selector("#banner .alarm", state="detached")
        job_id = site.submit("true", name="after", hold=True)
        page.wait_for_selector(f"#queue a[href='/jobs/{job_id}']")
    finally:
        context.close()
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)


def test_the_page_of_the_daemon_comes_back_with_it(chromium, site):
    """With `cotenant daemon --web`: its process ends with the daemon, and users log in again."""
    site.start("--web", "127.0.0.1:0")
    url = site.client.status()["web"]
    token = site.client.create_token(name="b", admin=True, user=None, lifetime_s=None)["text"]
    context = chromium.new_context(base_url=url)
    context.set_default_timeout(TIMEOUT_S * 1000)
    page = context.new_page()
    page.goto("/login")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#totals")
    site.stop()
    page.wait_for_selector("#link-state:not([hidden])")
    site.start("--web", url.removeprefix("http://"))
    page.wait_for_url("**/login")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#totals")
    context.close()
