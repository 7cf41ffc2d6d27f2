"""Reading requests and writing answers: JSON, numbers in the query, errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import CotenantError, UsageError

SCHEMA = 1
MAX_BODY_BYTES = 64 * 2**20
STATUS = {2: 400, 3: 503, 4: 404, 5: 403}
"""HTTP status by exit code; 500 for the others."""


def json_response(value: Mapping[str, Any], *, status: int = 200) -> Response:
    """A response with `value` and the version of the schema. NaN and infinity become null, which JSON lacks."""
    answer = {"schema": SCHEMA, **value}
    try:
        text = json.dumps(answer, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_finite(answer), allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status_code=status, media_type="application/json")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, (list, tuple)) else value


def error_response(error: CotenantError, *, status: int | None = None) -> Response:
    """A response with `error`, from which the client raises it again. `status`: in place of the one in `STATUS`."""
    return json_response({"error": error.as_json()}, status=status or STATUS.get(error.exit_code, 500))


async def read_object(request: Request, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The JSON object in the body; {} for an empty body.

    Raises:
        UsageError: the body is no JSON object, or longer than `max_bytes`.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_long(max_bytes)
    data = bytearray()  # `bytes` would be copied whole for every piece, on the thread that answers all users
    async for piece in request.stream():  # in pieces: a chunked request announces no length
        data += piece
        if len(data) > max_bytes:
            raise _too_long(max_bytes)
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError("the request is not a JSON object")
    return value


def _too_long(max_bytes: int) -> UsageError:
    return UsageError(
        f"the request is longer than {max_bytes / 2**20:g} MiB, the limit of this daemon",
        hint="submit in parts, or leave out variables with --export; an admin sets [limits] request_mib",
    )


def read_number(request: Request, name: str, default: float) -> float:
    """A number from the query string.

    Raises:
        UsageError: it is no number, or negative.
    """
    text = request.query_params.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError as error:
        raise UsageError(f"`{name}` is `{text}`, wanted a number") from error
    if not 0 <= value < 1e9:
        raise UsageError(f"`{name}` is `{text}`, wanted a number from 0")
    return value
