"""The OpenAPI document lists the routes that exist, and real answers have the shape that it promises."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import httpx
import pytest

from builders import a_gpu, a_spec
from cotenant.core.events import ServerSampled
from cotenant.core.gpu import GpuSample
from cotenant.daemon.api import openapi
from cotenant.daemon.api.application import application
from cotenant.daemon.api.context import ApiContext
from cotenant.daemon.api.routes import ROUTES
from cotenant.daemon.api.views.metrics import PrometheusCollector
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.config.schema import LimitsSection
from cotenant.daemon.job_verbs import JOB_VERBS
from cotenant.daemon.pruning import OutputStore
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling import policies
from loops import TIMEOUT_S, Bench, exited, started

INFO = {
    "version": "1",
    "pid": 1,
    "started_at": None,
    "socket": "/s",
    "state_dir": "/d",
    "policy": "most-memory",
    "backend": "fake",
    "engine": "fake",
    "simulate": None,
    "time_scale": 1.0,
    "tick_s": 1.0,
    "users": "own",
    "notifications": False,
    "estimator": None,
    "tcp": None,
    "web": None,
}


def errors_in(value, schema, document, where="answer"):
    """What is wrong with `value`, as a list of sentences; as much of JSON Schema as the document uses."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        found = [errors_in(value, option, document, where) for option in schema["anyOf"]]
        return min(found, key=len) if all(found) else []
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{where}: {value!r} is none of {schema['enum']}"]
    kinds = {"null": type(None), "string": str, "boolean": bool, "array": list, "object": dict}
    kind = schema.get("type")
    if kind in ("integer", "number"):
        is_right = isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    else:
        is_right = kind is None or isinstance(value, kinds[kind])
    if not is_right:
        return [f"{where}: {value!r} is no {kind}"]
    if kind == "array":
        return [e for i, item in enumerate(value) for e in errors_in(item, schema["items"], document, f"{where}[{i}]")]
    if kind != "object":
        return []
    properties = schema.get("properties", {})
    wrong = [f"{where}: no `{name}`" for name in schema.get("required", ()) if name not in value]
    if "properties" in schema:
        wrong += [f"{where}: `{name}` is not in the document" for name in value if name not in properties]
    for name, item in value.items():
        inner = properties.get(name, schema.get("additionalProperties", {}))
        wrong += errors_in(item, inner, document, f"{where}.{name}")
    return wrong


class Estimates:
    def __init__(self, folder):
        self.folder = folder

    def log_path(self, job_id):
        return self.folder / f"{job_id}.log"

    def estimate_spec(self, spec):
        return None, "no estimator here"


@pytest.fixture
def call(tmp_path):
    """Calls the API of a loop with one job that is done, one that runs, one that is held and one that waits."""
    bench = Bench().start()
    journal = bench.disk
    journal.of_job = lambda job_id: [event for event in journal.replay() if event.job_id == job_id]
    context = ApiContext(
        limits=LimitsSection(),
        store=OutputStore(Path("/nowhere")),
        loop=bench.loop,
        policy=policies.create("most-memory", {}),
        estimates=Estimates(tmp_path),
        journal=journal,
        access=AccessPolicy(own_uid=os.getuid()),
        tokens=TokenStore(tmp_path / "tokens.json"),
        log_paths=lambda ref: (f"/out/{ref.job_id}", f"/err/{ref.job_id}"),
        send_signal=lambda *_, **__: 1,
        metrics=PrometheusCollector(lambda: None),
        gpu_history=GpuTimeSeries(tmp_path / "gpus.jsonl"),
        now=lambda: 20.0,
        info=INFO,
        refusals=lambda: {"time": None, "mps": "its GPUs are simulated", "mig": None},
        stop=lambda: None,
        closing=asyncio.Event(),
    )
    app = application(context)
    peer = Peer(pid=os.getpid(), uid=os.getuid(), gid=0)

    async def with_peer(scope, receive, send):
        await app({**scope, "state": {"peer": peer}}, receive, send)

    async def request(method, path, body):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(with_peer), base_url="http://d") as client:
            return await client.request(method, path, json=body)

    def act(method, path, body=None):
        return asyncio.run(asyncio.wait_for(request(method, path, body), TIMEOUT_S))

    bench.sample()
    bench.submit(a_spec(declared_bytes=2**30, name="done"), a_spec(declared_bytes=2**30, name="runs", user="ann"))
    bench.until(lambda: (1, 1, {"SIM": "1"}) in bench.engine.launched)
    bench.inbox.put(started(1))
    gpu = a_gpu()
    sample = GpuSample(at_s=11.0, used_bytes=2**30, smact=0.5, power_w=100.0, energy_j=5.0)
    bench.inbox.put_sample(ServerSampled(at_s=11.0, cause="t", gpus=(gpu,), samples={gpu.uuid: sample}, observed=()))
    bench.inbox.put(exited(1, code=3))
    bench.submit(a_spec(hold=True), a_spec(declared_bytes=2**50, after=(2,)))
    bench.turn()
    yield act
    bench.loop.close()


def test_the_document_lists_every_route_and_no_other():
    document = openapi()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(route.method, re.sub(r"{(\w+):\w+}", r"{\1}", route.path)) for route in ROUTES}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    assert {f"{verb}_job" for verb in JOB_VERBS} <= set(names)


def test_the_document_is_json_and_every_reference_in_it_leads_somewhere():
    text = json.dumps(openapi())
    assert set(re.findall(r'"#/components/schemas/(\w+)"', text)) <= json.loads(text)["components"]["schemas"].keys()


SUBMISSION = {"command": ["true"], "workdir": "/", "env": {}, "name": "n", "declared_bytes": 2**30}
CALLS = [
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/jobs?records=1", None),
    ("GET", "/v1/ids?refs=1,2", None),
    *(("GET", f"/v1/jobs/{job_id}", None) for job_id in (1, 2, 3, 4)),
    *(("GET", f"/v1/jobs/{job_id}/explain", None) for job_id in (1, 4)),
    *(("GET", f"/v1/jobs/{job_id}/events", None) for job_id in (1, 3)),
    ("GET", "/v1/jobs/1/wait", None),
    ("POST", "/v1/jobs", {"jobs": [SUBMISSION]}),
    ("POST", "/v1/jobs", {"jobs": [SUBMISSION, {**SUBMISSION, "after": [2]}], "dry_run": True}),
    ("POST", "/v1/jobs/3/release", {"reason": "r"}),
    ("POST", "/v1/jobs/4/update", {"fields": {"priority": -1}}),
    ("POST", "/v1/jobs/1/hold", {}),
    ("POST", "/v1/jobs/1/requeue", {}),
    ("POST", "/v1/jobs/signal", {"signal": 10, "filters": {"active": True}}),
    ("POST", "/v1/jobs/2/cancel", {}),
    ("GET", "/v1/gpus", None),
    ("GET", "/v1/gpus/history", None),
    ("GET", "/v1/usage", None),
    ("GET", "/v1/usage?by=workload", None),
    ("GET", "/v1/usage?by=day", None),
    ("GET", "/v1/status", None),
    ("POST", "/v1/shutdown", {}),
    ("POST", "/v1/tokens", {"name": "x"}),
    ("GET", "/v1/tokens", None),
    ("GET", "/v1/jobs/99", None),
    ("GET", "/v1/openapi.json", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_answers_have_the_shape_in_the_document(call, method, path, body):
    document = openapi()
    template = re.sub(r"/jobs/\d+", "/jobs/{job_id}", path.partition("?")[0])
    operation = document["paths"][template][method.lower()]
    response = call(method, path, body)
    expected = operation["responses"].get(str(response.status_code), operation["responses"]["default"])
    assert (response.status_code < 400) == (path not in ("/v1/jobs/99", "/v1/jobs/1/hold")), response.text
    content = expected["content"]["application/json"]
    assert errors_in(response.json(), content.get("schema", {}), document) == []


def test_an_answer_of_another_shape_is_detected():
    document = openapi()
    schema = {"$ref": "#/components/schemas/ShutdownAnswer"}
    assert errors_in({"schema": 1, "pid": 1}, schema, document) == []
    assert errors_in({"schema": 1}, schema, document) == ["answer: no `pid`"]
    assert errors_in({"schema": 1, "pid": "1"}, schema, document) == ["answer.pid: '1' is no integer"]
    assert errors_in({"schema": 1, "pid": 1, "x": 2}, schema, document) == ["answer: `x` is not in the document"]
