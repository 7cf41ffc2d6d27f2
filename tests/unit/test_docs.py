"""The documentation tells no lies that a machine can find: dead links, unknown commands, code that does not parse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "changelog.d/*.md", "examples/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ cotenant ([a-z][a-z-]*)", re.MULTILINE)


def test_there_are_pages():
    assert {"README.md", "CONTRIBUTING.md", "docs/architecture.md"} <= {str(page.relative_to(ROOT)) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(text) if not target.startswith(("http://", "https://", "mailto:"))]
    dead = [target for target in targets if not leads_somewhere(page, target)]
    assert dead == []


def leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = target.partition("#")
    found = (page.parent / path).resolve() if path else page
    if not found.exists() or not found.is_relative_to(ROOT):
        return False
    return not anchor or anchor in anchors_of(found)


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_parses(page):
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, str(page), "exec")


def test_commands_in_pages_exist():
    told = {verb for page in PAGES for verb in COMMAND.findall(page.read_text(encoding="utf-8"))}
    assert told, "no page shows a command"
    unknown = [verb for verb in sorted(told) if not has_help(verb)]
    assert unknown == []


def has_help(verb: str) -> bool:
    code = "import sys; from cotenant.cli.main import run; sys.argv = ['cotenant', *sys.argv[1:]]; run()"
    done = subprocess.run([sys.executable, "-c", code, verb, "--help"], capture_output=True, check=False, timeout=60)
    return done.returncode == 0


def test_decisions_are_listed_and_numbered():
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == pages
    numbers = [int(name[:4]) for name in pages]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts(page):
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "Turned down"]


def test_glossary_is_sorted():
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    terms = [term.lower() for term in re.findall(r"^\*\*(.+?)\*\*", text, re.MULTILINE)]
    assert terms == sorted(terms)
