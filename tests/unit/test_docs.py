"""Documentation: links resolve, commands and named modules exist, code parses, tables of terms are in order."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from cotenant.daemon.config.schema import Config

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "changelog.d/*.md", "examples/*.md", "benchmarks/*.md")
    for page in ROOT.glob(pattern)
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(\w*)(?: [^\n]*)?\n(.*?)^```", re.MULTILINE | re.DOTALL)
LOADED = re.compile(
    r"<(?:script|img|iframe)[^>]+src=\"(https?:[^\"]+)|<link[^>]+rel=\"stylesheet\"[^>]+href=\"(https?:[^\"]+)"
)
COMMAND = re.compile(r"^\$ cotenant ([a-z][a-z0-9-]*)", re.MULTILINE)


def test_there_are_pages():
    assert {"README.md", "CONTRIBUTING.md", "docs/explanation/architecture.md", "benchmarks/README.md"} <= {
        str(page.relative_to(ROOT)) for page in PAGES
    }


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
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_parses(page):
    for language, code in FENCE.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            compile(code, str(page), "exec")


def test_commands_in_pages_exist():
    documented = {verb for page in PAGES for verb in COMMAND.findall(page.read_text(encoding="utf-8"))}
    assert documented, "no page shows a command"
    unknown = [verb for verb in sorted(documented) if not has_help(verb)]
    assert unknown == []


def has_help(verb: str) -> bool:
    code = "import sys; from cotenant.cli.main import run; sys.argv = ['cotenant', *sys.argv[1:]]; run()"
    done = subprocess.run([sys.executable, "-c", code, verb, "--help"], capture_output=True, check=False, timeout=60)
    return done.returncode == 0


SOURCES = sorted(
    path for room in ("src", "tests", "benchmarks", "examples", "scripts") for path in (ROOT / room).rglob("*.py")
)
PACKAGE = ROOT / "src" / "cotenant"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
CODE = re.compile(r"``?([^`\n]+)``?")
DOTTED = re.compile(rf"(?:cotenant|{'|'.join(ROOMS)})(?:\.[A-Za-z]\w*)+")
OURS = re.compile(r"\bcotenant(?:\.[a-z]\w*)+(?![\w/.-])")
MEMBER = re.compile(r"[A-Z]\w*[a-z]\w*\.[a-z_]\w*")
"""`Class.member`, of ours or of a library that our code names."""
PATH = re.compile(r"[\w.-]+(?:/[\w.-]+)+/?")
CAPITALS = re.compile(r"(?<![A-Za-z])[A-Z]{3,}(?![A-Za-z])")  # a placeholder, as in gpu_backend_case_NAME
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8")))
}
SECTIONS = {field.name: field.default_factory() for field in fields(Config)}
NO_MODULES = {"cotenant.service"}  # a unit of systemd
GROUPS = set(
    re.findall(r"`(cotenant\.[a-z_]+)`", (ROOT / "docs" / "how-to" / "add-a-plugin.md").read_text(encoding="utf-8"))
)
"""Entry point groups look like modules."""


def test_modules_files_and_tests_that_are_named_exist():
    stale = {str(page.relative_to(ROOT)): stale_names(page) for page in [*PAGES, *SOURCES]}
    assert {page: names for page, names in stale.items() if names} == {}


def stale_names(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    documented = {word.split("::")[0].split("(")[0] for word in CODE.findall(text)}
    if page.suffix == ".md":
        documented |= set(OURS.findall(text))
    return [word for word in sorted(documented) if names_nothing(word, page)]


def names_nothing(word: str, page: Path) -> bool:
    """Whether `word` looks like the name of a module, a file or a test of ours, and there is none."""
    if DOTTED.fullmatch(word):
        return not (word in NO_MODULES or word in GROUPS or is_setting(word) or is_code(word.removeprefix("cotenant.")))
    if re.fullmatch(r"test_\w+", word) and page.suffix == ".md":
        return word not in TESTS
    if MEMBER.fullmatch(word) and page.suffix == ".md":
        return not set(word.split(".")) <= words_of_sources()
    if PATH.fullmatch(word) and word.split("/")[0] in {*ROOMS, *(path.name for path in ROOT.iterdir()), "unit"}:
        found = [
            (base / (word + end)).exists()
            for base in (ROOT, PACKAGE, ROOT / "tests", page.parent)
            for end in ("", ".py")
        ]
        return not CAPITALS.search(word) and not any(found)
    return False


@functools.cache
def words_of_sources() -> frozenset[str]:
    return frozenset(word for path in SOURCES for word in re.findall(r"\w+", path.read_text(encoding="utf-8")))


def is_setting(word: str) -> bool:
    section, _, key = word.partition(".")
    return section in SECTIONS and hasattr(SECTIONS[section], key)


def is_code(dotted: str) -> bool:
    """Whether `dotted` leads below the package to a module, or to a name that stands in one."""
    place = PACKAGE
    for part in dotted.split("."):
        if not place.is_dir():
            return bool(re.search(rf"\b{part}\b", place.read_text(encoding="utf-8")))
        below, module = place / part, place / f"{part}.py"
        found = below if below.is_dir() else module if module.exists() else place / "__init__.py"
        if found.name == "__init__.py":
            return bool(re.search(rf"\b{part}\b", found.read_text(encoding="utf-8")))
        place = found
    return True


def test_architecture_names_every_part_of_a_room():
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("| room | parts |")[2].partition("\n\n")[0]
    parts = {path.parent.name for room in ROOMS for path in (PACKAGE / room).glob("*/__init__.py")}
    assert parts == set(CODE.findall(table)) - set(ROOMS)


def test_decisions_are_listed_and_numbered():
    folder = ROOT / "docs" / "decisions"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == pages
    numbers = [int(name[:4]) for name in pages]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts(page):
    headings = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == ["Context", "Decision", "Consequences", "Rejected alternatives"]


def glossary_rows() -> list[tuple[str, ...]]:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| **")]
    return [tuple(cell.strip() for cell in row) for row in rows]


def test_glossary_has_a_meaning_and_a_user_for_each_term():
    rows = glossary_rows()
    assert len(rows) > 40
    assert [row for row in rows if len(row) != 3 or not all(row)] == []


def test_glossary_is_sorted():
    terms = [row[0].strip("*").lower() for row in glossary_rows()]
    assert terms == sorted(terms)


def test_site_has_every_page_in_its_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = set(re.findall(r": (\S+\.md)$", navigation, re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    decisions = {page for page in pages if re.fullmatch(r"decisions/\d{4}-.*", page)}
    assert named == pages - decisions


def test_site_builds_offline_without_warnings_and_lists_all_decisions(tmp_path):
    pytest.importorskip("mkdocs", reason="needs mkdocs (`pip install cotenant[docs]`)")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=250)
    assert (done.returncode, done.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    loaded = [match for page in pages for match in LOADED.findall(page.read_text(encoding="utf-8"))]
    assert pages
    assert loaded == []
    index = (tmp_path / "site" / "decisions" / "index.html").read_text(encoding="utf-8")
    linked = re.findall(r'<a href="(\d{4}-[^"]+)\.html" class="md-nav__link"', index)
    assert sorted(linked) == sorted(page.stem for page in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
