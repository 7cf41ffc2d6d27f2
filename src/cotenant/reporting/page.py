"""One self-contained HTML page: text, tables and SVG charts, nothing loaded from elsewhere.

Every text is escaped when it is added, so callers pass plain strings; `Html` marks the few that are markup already.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from cotenant.core.errors import UsageError
from cotenant.reporting.style import STYLE

_CODE = re.compile(r"`(.+?)`")


class Html(str):
    """Markup that is not escaped again."""

    __slots__ = ()


def html(text: str) -> Html:
    """`text` as markup: escaped, with backticks turned into `<code>`. Markup stays as it is."""
    return text if isinstance(text, Html) else Html(_CODE.sub(r"<code>\1</code>", escape(text)))


def bold(text: str) -> Html:
    """`text` in bold."""
    return Html(f"<b>{html(text)}</b>")


def join(parts: Iterable[str]) -> Html:
    """The parts one after the other, each escaped unless it is markup."""
    return Html("".join(html(part) for part in parts))


class Page:
    """A page, built from top to bottom."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = [f"<h1>{html(title)}</h1>"]

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html(text)}</h2>")

    def lead(self, text: str) -> None:
        """The summary under the title."""
        self._parts.append(f"<p class=lead>{html(text)}</p>")

    def paragraph(self, text: str) -> None:
        """A paragraph."""
        self._parts.append(f"<p>{html(text)}</p>")

    def note(self, text: str) -> None:
        """A paragraph in small print."""
        self._parts.append(f"<p class=note>{html(text)}</p>")

    def items(self, texts: Iterable[str]) -> None:
        """A bulleted list."""
        self._parts.append("<ul>" + "".join(f"<li>{html(text)}</li>" for text in texts) + "</ul>")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]], *, prose: Container[str] = ()) -> None:
        """A table whose first column names the row; it scrolls where it is wider than the window.

        `prose`: heads of columns that hold sentences; the others hold numbers.
        """
        first, *others = head
        marks = [" class=prose" if cell in prose else "" for cell in others]
        titles = "".join(f"<th{mark}>{html(cell)}</th>" for mark, cell in zip(marks, others, strict=True))
        lines = [f"<tr><th class=name>{html(first)}</th>{titles}</tr>"]
        for name, *cells in rows:
            data = "".join(f"<td{mark}>{html(cell)}</td>" for mark, cell in zip(marks, cells, strict=True))
            lines.append(f"<tr><th class=name>{html(name)}</th>{data}</tr>")
        self._parts.append(f"<div class=scroll><table>{''.join(lines)}</table></div>")

    def figure(self, svg: str, caption: str) -> None:
        """A chart of full width below its caption."""
        self._parts.append(f"<figure class=wide>{_captioned(svg, caption)}</figure>")

    def grid(self, figures: Iterable[tuple[str, str]]) -> None:
        """Small charts side by side, as (caption, SVG)."""
        cells = "".join(f"<figure>{_captioned(svg, caption)}</figure>" for caption, svg in figures)
        self._parts.append(f"<div class=grid>{cells}</div>")

    def columns(self, sections: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Sections side by side where the window is wide enough, as (heading, markup below it)."""
        cells = "".join(f"<section><h2>{html(title)}</h2>{''.join(parts)}</section>" for title, parts in sections)
        self._parts.append(f"<div class=two>{cells}</div>")

    def text(self) -> str:
        """The whole page."""
        return (
            "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
            '<meta name=viewport content="width=device-width,initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{STYLE}</style></head>\n<body>"
            + "\n".join(self._parts)
            + "</body></html>\n"
        )

    def write(self, path: Path) -> Path:
        """Write the page to `path`.

        Raises:
            UsageError: the file cannot be written.
        """
        try:
            path.write_text(self.text(), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write `{path}`: {error.strerror}") from error
        return path


def note(text: str) -> Html:
    """A paragraph in small print, for `Page.columns`."""
    return Html(f"<p class=note>{html(text)}</p>")


def legend(tones: Mapping[str, str]) -> Html:
    """Names beside their colors, as {name: CSS class}."""
    entries = " ".join(f'<span><i class="{tone}"></i>{escape(name)}</span>' for name, tone in tones.items())
    return Html(f"<p class=legend>{entries}</p>")


def _captioned(svg: str, caption: str) -> str:
    return f"<figcaption>{html(caption)}</figcaption>{svg}"
