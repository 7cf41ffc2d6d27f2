"""The HTTP API: handlers, and the JSON that they read and write."""

from __future__ import annotations

from typing import Any


def openapi() -> dict[str, Any]:
    """The OpenAPI document of the API, made from the routes that exist."""
    from cotenant.daemon.api.openapi_document import openapi as document  # clients import this package: keep it light

    return document()
