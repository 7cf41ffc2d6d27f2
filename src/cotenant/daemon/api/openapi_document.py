"""The OpenAPI 3.1 document of the HTTP API, made from its routes."""

from __future__ import annotations

from typing import Any

import cotenant
from cotenant.core.job import JobSpec
from cotenant.core.json_schema import schema_of
from cotenant.daemon.api.routes import PATH_KINDS, PATH_PARAMETER, ROUTES, Route
from cotenant.daemon.api.schemas.answers import ErrorAnswer


def openapi() -> dict[str, Any]:
    """The document, as a JSON object."""
    components: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = PATH_PARAMETER.sub(r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, components)
    schema_of(JobSpec, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "cotenant",
            "version": cotenant.__version__,
            "description": "The daemon serves it on its unix socket, and with [tcp] listen on the network by tokens.",
        },
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, components: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": route.operation_id, "summary": route.summary}
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema_of(PATH_KINDS[kind].type, components)}
        for name, kind in PATH_PARAMETER.findall(route.path)
    ]
    parameters += [
        {
            "name": parameter.name,
            "in": "query",
            "required": False,
            "description": parameter.text,
            "schema": schema_of(parameter.kind, components),
        }
        for parameter in route.query
    ]
    if parameters:
        found["parameters"] = parameters
    if route.body is not None:
        found["requestBody"] = {"content": {"application/json": {"schema": schema_of(route.body, components)}}}
    found["responses"] = {
        **{
            str(status): {"description": "success", "content": _content(route.answer, components)}
            for status in route.statuses
        },
        "default": {"description": "failure", "content": _content(ErrorAnswer, components)},
    }
    return found


def _content(answer: Any, components: dict[str, Any]) -> dict[str, Any]:
    if isinstance(answer, str):
        return {answer: {}}
    return {"application/json": {"schema": schema_of(answer, components)}}
