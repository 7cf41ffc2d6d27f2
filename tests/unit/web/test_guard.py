import asyncio

import pytest
from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import NotPermitted, UsageError
from cotenant.web.guard import MAX_FORM_BYTES, Guard, machine_names, read_form
from cotenant.web.sessions import SessionStore


def a_request(method="POST", body=b"", **headers):
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive():
        return pieces.pop(0)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": method,
        "path": "/",
        "headers": raw,
        "query_string": b"",
        "client": ("1.2.3.4", 5),
    }
    return Request(scope, receive)


def a_guard(**options):
    return Guard(SessionStore(60.0), {"gpu1", "gpu1.example.org"}, **{"cookie": "c_7412", "is_tls": False, **options})


@pytest.mark.parametrize(
    "host", ["127.0.0.1:7412", "localhost", "LOCALHOST:1", "[::1]:7412", "gpu1:7412", "GPU1.example.org", "10.0.0.7"]
)
def test_addresses_and_names_of_this_machine_are_served(host):
    a_guard().check_host(a_request(host=host))


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "", "[::1", "gpu1@evil"]
)
def test_a_rebound_name_is_refused(host):
    with pytest.raises(NotPermitted):
        a_guard().check_host(a_request(host=host))


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example", "host": "127.0.0.1:7412"},
        {"origin": "http://127.0.0.1:8080", "host": "127.0.0.1:7412"},
        {"origin": "null", "host": "127.0.0.1:7412"},
        {"sec_fetch_site": "cross-site", "host": "127.0.0.1:7412"},
        {"sec_fetch_site": "same-site", "host": "127.0.0.1:7412"},
    ],
)
def test_a_form_of_another_site_is_refused(headers):
    with pytest.raises(NotPermitted):
        a_guard().check_origin(a_request(**headers))


def test_a_form_of_this_site_passes():
    headers = {"origin": "http://127.0.0.1:7412", "sec_fetch_site": "same-origin", "host": "127.0.0.1:7412"}
    a_guard().check_origin(a_request(**headers))
    a_guard().check_origin(a_request(host="127.0.0.1:7412"))


@pytest.mark.parametrize("is_tls", [False, True])
def test_the_cookie_is_for_this_server_alone(is_tls):
    sessions = SessionStore(60.0)
    guard = Guard(sessions, (), cookie="c_7412", is_tls=is_tls)
    session = sessions.create(None)
    response = Response()
    guard.set_cookie(response, session)
    cookie = response.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert "max-age=60" in cookie
    assert ("secure" in cookie, "__host-" in cookie) == (is_tls, is_tls)
    sent = response.headers["set-cookie"].partition(";")[0]
    assert guard.session_of(a_request(cookie=sent)) is session
    assert guard.session_of(a_request(cookie=sent + "x")) is None
    assert guard.session_of(a_request(cookie="\x00=;;")) is None


def test_a_form_is_read_up_to_a_limit():
    assert asyncio.run(read_form(a_request(body=b"a=1&b=%C3%A9&a=2&c="))) == {"a": "2", "b": "é", "c": ""}
    with pytest.raises(UsageError):
        asyncio.run(read_form(a_request(body=b"a=" + b"x" * MAX_FORM_BYTES)))
    with pytest.raises(UsageError):
        asyncio.run(read_form(a_request(body=b"&".join(b"a=1" for _ in range(300)))))


def test_the_machine_has_a_short_and_a_long_name():
    assert machine_names(lambda: ["gpu1.example.org"]) == {"gpu1.example.org", "gpu1"}
