"""One HTML page with text, tables and figures inside it; nothing is loaded from elsewhere. Figures need matplotlib."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
img { max-width: 100%; }
figcaption, .note { color: #555; font-size: 90%; }
"""


def import_pyplot() -> Any:
    """`matplotlib.pyplot` that draws into files.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise UsageError(
            "plots need matplotlib, which is not installed", hint="`pip install cotenant[plots]`"
        ) from error
    mpl.use("Agg")
    from matplotlib import pyplot

    return pyplot


class Page:
    """A page that grows from its top."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = [f"<h1>{html.escape(title)}</h1>"]

    def heading(self, text: str) -> None:
        """A section begins."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{html.escape(text)}</p>")

    def table(self, head: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
        """A table; the first column is text, the others numbers."""
        cells = "".join(f"<th>{html.escape(layer)}</th>" for layer in head)
        rows = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
        self._parts.append(f"<table><tr>{cells}</tr>{rows}</table>")

    def figure(self, figure: Any, caption: str) -> None:
        """A figure of matplotlib, which is closed by it."""
        held = io.BytesIO()
        figure.savefig(held, format="png", dpi=110, bbox_inches="tight")
        import_pyplot().close(figure)
        picture = base64.b64encode(held.getvalue()).decode()
        told = html.escape(caption)
        self._parts.append(
            f'<figure><img src="data:image/png;base64,{picture}" alt="{told}"><figcaption>{told}</figcaption></figure>'
        )

    def write(self, path: Path) -> Path:
        """Write it; `.html` is added to a name without it."""
        path = path.with_suffix(".html")
        body = "\n".join(self._parts)
        path.write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(self.title)}</title>'
            f"<style>{_STYLE}</style><body>\n{body}\n</body></html>\n",
            encoding="utf-8",
        )
        return path
