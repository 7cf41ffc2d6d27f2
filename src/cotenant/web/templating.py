"""Templates: loaded and compiled once, escaped always, with filters that write numbers as the command line does."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cotenant.core.text import encodable
from cotenant.core.units import format_bytes, format_duration, format_energy

TEMPLATES = Path(__file__).with_name("templates")
STATIC = Path(__file__).with_name("static")


def make_environment() -> Environment:
    """The environment with all templates compiled: a process without the right to read their files serves them."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    environment.filters |= {
        "bytes": _bytes,
        "duration": _duration,
        "energy": format_energy,
        "percent": _percent,
        "number": _number,
        "times": _times,
        "watts": lambda value: "-" if value is None else f"{value:.0f} W",
        "kwh": lambda value: "-" if value is None else f"{value / 3.6e6:.3f}",
        "hours": lambda value: "-" if value is None else f"{value / 3600:.2f}",
        "moment": moment,
        "clock": clock,
        "instant": instant,
        "tojson_attr": lambda value: json.dumps(value, ensure_ascii=True),
    }
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


def rendered(fragments: Mapping[str, str]) -> dict[str, Markup]:
    """Fragments that templates made, as markup."""
    return {name: Markup(text) for name, text in fragments.items()}  # noqa: S704 (the templates escaped it)


def moment(text: str | None) -> str:
    """An RFC 3339 time of the API for people: `23:15:52 UTC`, and `2026-11-21 23:15 UTC` before today."""
    if text is None:
        return "-"
    is_today = text[:10] == datetime.now(timezone.utc).date().isoformat()
    return f"{text[11:19]} UTC" if is_today else f"{text[:10]} {text[11:16]} UTC"


def clock(at_s: float) -> str:
    """Seconds since 1970 as `23:15:52 UTC`."""
    return datetime.fromtimestamp(at_s, tz=timezone.utc).strftime("%H:%M:%S UTC")


def instant(at_s: float) -> str:
    """Seconds since 1970 as `moment` writes a time."""
    return moment(datetime.fromtimestamp(at_s, tz=timezone.utc).isoformat(timespec="seconds"))


def seconds_of(text: str | None) -> float | None:
    """An RFC 3339 time of the API as seconds since 1970."""
    return None if text is None else datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def now_s() -> float:
    """Seconds since 1970."""
    return time.time()


def gpu_label(gpu: Mapping[str, Any]) -> str:
    """`GPU 3`, or `GPU 3/1g.5gb` for a MIG instance."""
    return f"GPU {gpu['index']}" + (f"/{gpu['mig_profile']}" if gpu["mig_profile"] else "")


def _finalize(value: Any) -> Any:
    """Unknown values as a dash; and texts as UTF-8 can hold them, since paths may be any bytes."""
    if value is None:
        return "-"
    return encodable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _bytes(value: float | None) -> str:
    return "-" if value is None else format_bytes(int(value))


def _duration(value_s: float | None) -> str:
    return "-" if value_s is None else format_duration(value_s)


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.0f} %"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}".rstrip("0").rstrip(".")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}\N{MULTIPLICATION SIGN}"
