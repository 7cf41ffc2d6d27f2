"""Hooks of mkdocs: linked pages outside of `docs/` become part of the site, and decisions are listed by topic.

Benchmark results and the README of the examples stand beside what they belong to, and GitHub follows relative links to
them. The site has them below `repository/`; a link to a source file or a folder becomes its path as text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = "repository"
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
SHOWN = frozenset((".md", ".svg", ".png"))
DECISIONS = DOCS / "decisions" / "README.md"
ROW = re.compile(r"\| \[(?P<number>\d{4})\]\((?P<file>[^)]+)\) \| (?P<title>.+) \|")


def on_config(config: Any) -> Any:
    """List the decisions in the navigation by the topics of their index."""
    index = str(DECISIONS.relative_to(DOCS))
    for entry in config.nav:
        if entry == {"Decisions": index}:
            entry["Decisions"] = [index, *_decisions_by_topic(DECISIONS.read_text(encoding="utf-8"))]
    return config


def _decisions_by_topic(text: str) -> Iterator[dict[str, list[dict[str, str]]]]:
    for section in text.split("\n## ")[1:]:
        topic, _, table = section.partition("\n")
        yield {
            topic: [
                {f"{row['number']} {row['title'].replace('`', '')}": f"decisions/{row['file']}"}
                for row in ROW.finditer(table)
            ]
        }


def on_files(files: Files, config: Any) -> Files:
    """Add the linked pages and pictures outside of `docs/`, and what these link to."""
    waiting, seen = list(DOCS.rglob("*.md")), set()
    while waiting:
        page = waiting.pop()
        for target in _targets(page):
            if target in seen or target.is_relative_to(DOCS) or target.suffix not in SHOWN:
                continue
            seen.add(target)
            files.append(File.generated(config, _site_path(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links of this page to where the site has their targets."""
    here = _source(page.file.src_uri)

    def replaced(match: re.Match[str]) -> str:
        target = _resolved(here, match["target"])
        if target is None or (target.is_relative_to(DOCS) and here.is_relative_to(DOCS)):
            return match[0]
        if target.suffix not in SHOWN:
            return f"{match['text']} (`{target.relative_to(ROOT)}`)"
        path = os.path.relpath(_site_path(target), Path(page.file.src_uri).parent)
        return f"[{match['text']}]({path}{match['anchor'] or ''})"

    return LINK.sub(replaced, markdown)


def _targets(page: Path) -> Iterator[Path]:
    for match in LINK.finditer(page.read_text(encoding="utf-8")):
        target = _resolved(page, match["target"])
        if target is not None:
            yield target


def _resolved(page: Path, target: str) -> Path | None:
    """The file of the repository that a relative link leads to; None for addresses and what does not exist."""
    if "://" in target or target.startswith("mailto:"):
        return None
    found = (page.parent / target).resolve()
    return found if found.is_relative_to(ROOT) and found.exists() else None


def _site_path(target: Path) -> str:
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    return f"{OUTSIDE}/{target.relative_to(ROOT)}"


def _source(src_uri: str) -> Path:
    inside = Path(src_uri)
    return ROOT / inside.relative_to(OUTSIDE) if inside.parts[0] == OUTSIDE else DOCS / inside
