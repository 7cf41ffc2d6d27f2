"""The HTTP API: permissions, and answers to wrong calls."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from cotenant.daemon.api.application import application
from cotenant.daemon.api.context import ApiContext
from cotenant.daemon.api.requests import json_response
from cotenant.daemon.api.routes import ROUTES
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.config.schema import LimitsSection
from cotenant.daemon.pruning import OutputStore


def a_server():
    """The parts of a daemon that has nothing in it."""
    return ApiContext(
        limits=LimitsSection(request_mib=1.0),
        store=OutputStore(Path("/nowhere")),
        loop=SimpleNamespace(),
        policy=None,
        estimates=None,
        journal=None,
        access=AccessPolicy(own_uid=os.getuid()),
        tokens=None,
        log_paths=None,
        send_signal=None,
        now=None,
        info={"notifications": False},
        metrics=None,
        gpu_history=None,
        refusals=dict,
        stop=None,
        closing=None,
    )


def with_peer(server, uid):
    """The application of `server`, for a caller that the kernel says is `uid`."""
    asgi = application(server)
    peer = Peer(pid=1, uid=uid, gid=0)

    async def call(scope, receive, send):
        await asgi({**scope, "state": {"peer": peer}}, receive, send)

    return call


def answer(method, path, *, uid=None, **request):
    """What a caller gets that the kernel says is `uid`; the daemon behind has nothing in it."""
    app = with_peer(a_server(), os.getuid() if uid is None else uid)

    async def call():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://d") as client:
            return await client.request(method, path, **request)

    return asyncio.run(call())


def path_of(route):
    """A path of this route, for the job 1 or a token."""
    return re.sub("{job_id:int}", "1", route.path).replace("{token_id:str}", "0123abcd")


@pytest.mark.parametrize(("method", "path"), [(route.method, path_of(route)) for route in ROUTES])
def test_another_user_is_refused_everywhere(method, path):
    response = answer(method, path, uid=os.getuid() + 4242)
    assert response.status_code == 403
    assert response.json()["error"]["kind"] == "NotPermitted"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        pytest.param(b"{", "the request is not JSON", id="no JSON"),
        pytest.param(b"[]", "the request is not a JSON object", id="no object"),
        pytest.param(b"{}", "`jobs` must be an array", id="no jobs"),
        pytest.param(b'{"jobs": []}', "`jobs` must be an array of 1 to", id="none"),
        pytest.param(b'{"jobs": [3]}', "a job must be a JSON object", id="no job"),
    ],
)
def test_wrong_requests_are_refused(body, message):
    response = answer("POST", "/v1/jobs", content=body)
    assert (response.status_code, response.json()["error"]["kind"]) == (400, "UsageError")
    assert message in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v2/jobs", None),
        ("DELETE", "/v1/jobs", "GET, POST"),
        ("PUT", "/v1/jobs/3", "GET"),
        ("GET", "/v1/jobs/x", None),
        ("GET", "/", None),
    ],
)
def test_an_unknown_route_answers_with_json(method, path, allowed):
    response = answer(method, path)
    assert response.status_code == (404 if allowed is None else 405)
    assert response.headers.get("allow") == allowed
    assert response.json()["error"]["message"] == f"no such call: {method} {path}"


@pytest.mark.parametrize("query", ["timeout_s=soon", "timeout_s=-1", "timeout_s=nan", "until=never"])
def test_wait_with_a_wrong_query_is_refused(query):
    assert answer("GET", f"/v1/jobs/1/wait?{query}").status_code == 400


def test_an_internal_error_reveals_no_details():
    response = answer("GET", "/v1/gpus")  # the loop behind it is none
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "the daemon failed on this request (AttributeError)"


def test_nan_is_encoded_as_null():
    response = json_response({"smact": float("nan"), "list": [1.5, float("inf"), {"x": (float("-inf"), 2)}]})
    assert json.loads(response.body) == {"schema": 1, "smact": None, "list": [1.5, None, {"x": [None, 2]}]}


def test_a_body_longer_than_its_content_length_is_cut_off():
    async def pieces():
        for _ in range(64):
            yield b"x" * 2**16

    response = answer("POST", "/v1/jobs", content=pieces())
    message = "the request is longer than 1 MiB, the limit of this daemon"
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


def test_an_announced_length_above_the_limit_is_refused_unread():
    async def never():
        raise AssertionError("the body was read")
        yield b""

    response = answer("POST", "/v1/jobs", content=never(), headers={"content-length": str(2**20 + 1)})
    assert (response.status_code, response.json()["error"]["message"][:34]) == (
        400,
        "the request is longer than 1 MiB, ",
    )


def test_a_caller_who_leaves_in_the_middle_of_a_request_is_not_logged(caplog):
    sent = []
    scope = {"type": "http", "method": "POST", "path": "/v1/jobs", "headers": [], "query_string": b""}

    async def receive():
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    asyncio.run(with_peer(a_server(), os.getuid())(scope, receive, send))
    assert (sent[0]["status"], caplog.records) == (400, [])
