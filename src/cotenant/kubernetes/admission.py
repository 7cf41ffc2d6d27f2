"""A mutating admission webhook: gives pods with our annotation the labels and resources that sharing needs.

Source: admission.k8s.io/v1, `AdmissionReview`. A request that cannot be understood is allowed unchanged: a webhook
that refuses pods stops a cluster.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cotenant.core.errors import UsageError
from cotenant.kubernetes.pods import Sharing, annotated_memory_mib, gpu_containers, memory_patch

logger = logging.getLogger(__name__)

API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
MAX_BODY_BYTES = 4 * 1024 * 1024
"""etcd takes 1.5 MiB of an object; a review holds it twice."""
MAX_REQUESTS = 100
GRACE_S = 10
MAX_WARNING_CHARS = 256
"""The API server cuts longer ones. Source: `Warnings` in k8s.io/api/admission/v1/types.go."""


def review(body: Mapping[str, Any], sharing: Sharing) -> dict[str, Any]:
    """The answer to an AdmissionReview.

    Raises:
        UsageError: it is none.
    """
    request = body.get("request")
    if body.get("kind") != KIND or body.get("apiVersion") != API_VERSION or not isinstance(request, Mapping):
        raise UsageError(f"wanted a {KIND} of {API_VERSION} with a request")
    uid = request.get("uid")
    if not isinstance(uid, str) or not uid:
        raise UsageError("the request has no uid")
    response: dict[str, Any] = {"uid": uid, "allowed": True}
    try:
        operations, notes = _changes(request, sharing)
    except UsageError as error:
        operations, notes = [], [f"GPU memory is left as it is: {error.message}"]
    if operations:
        patch = json.dumps([operation.as_json() for operation in operations])
        response |= {"patchType": "JSONPatch", "patch": base64.b64encode(patch.encode()).decode()}
    if notes:
        response["warnings"] = [f"cotenant: {note}"[:MAX_WARNING_CHARS] for note in notes]
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}


def _changes(request: Mapping[str, Any], sharing: Sharing) -> tuple[list[Any], list[str]]:
    pod = request.get("object")
    if request.get("operation") != "CREATE" or not isinstance(pod, Mapping) or pod.get("kind") != "Pod":
        return [], []
    needed = annotated_memory_mib(pod)
    if needed is None:
        return [], []
    return memory_patch(pod, dict.fromkeys(gpu_containers(pod), needed), sharing)


def webhook(sharing: Sharing) -> Starlette:
    """The application: `POST /mutate`, and `GET /healthz` for probes."""

    async def mutate(request: Request) -> Response:
        received = bytearray()
        async for piece in request.stream():
            received += piece
            if len(received) > MAX_BODY_BYTES:
                return JSONResponse({"message": f"the request has more than {MAX_BODY_BYTES} bytes"}, status_code=413)
        try:
            body = json.loads(received)
            answer = review(body if isinstance(body, dict) else {}, sharing)
        except (ValueError, RecursionError) as error:
            return JSONResponse({"message": f"no JSON: {error}"}, status_code=400)
        except UsageError as error:
            return JSONResponse({"message": error.message}, status_code=400)
        response = answer["response"]
        logger.info("reviewed uid=%r changed=%s", response["uid"][:64], "patch" in response)
        return JSONResponse(answer)

    async def healthz(_: Request) -> Response:
        return Response("ok", media_type="text/plain")

    return Starlette(routes=[Route("/mutate", mutate, methods=["POST"]), Route("/healthz", healthz)])


def serve(sharing: Sharing, cert: Path, key: Path, *, bind: str, port: int, on_start: Callable[[str], None]) -> None:
    """Serve the webhook until SIGTERM or Ctrl-C; `on_start` is called with its URL.

    Raises:
        UsageError: the files are no certificate and its key, or the address cannot be had.
    """

    class AnnouncingServer(uvicorn.Server):
        async def startup(self, sockets: list[socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                address, number = self.servers[0].sockets[0].getsockname()[:2]
                on_start(f"https://{address}:{number}/mutate")

    config = uvicorn.Config(
        webhook(sharing), host=bind, port=port, ssl_certfile=cert, ssl_keyfile=key, log_level="warning",
        access_log=False, server_header=False, limit_concurrency=MAX_REQUESTS, timeout_graceful_shutdown=GRACE_S,
    )  # fmt: skip
    try:
        config.load()
    except OSError as error:  # ssl.SSLError, too
        raise UsageError(f"`{cert}` and `{key}` are no certificate and its key: {error}") from error
    server = AnnouncingServer(config)
    try:
        server.run()
    except SystemExit as error:  # the address: uvicorn has printed why
        raise UsageError(f"cannot listen on {bind}:{port}", hint="choose another --port") from error
