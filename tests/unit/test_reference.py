"""The reference pages, the man page and the completion scripts say what the code says."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("write_reference", ROOT / "scripts" / "write_reference.py")
write_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(write_reference)
PAGES = write_reference.pages()


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_page_is_up_to_date(path):
    page = ROOT / path
    assert page.exists(), f"run `{write_reference.COMMAND}`"
    assert page.read_text(encoding="utf-8") == PAGES[path], f"out of date: run `{write_reference.COMMAND}`"


def test_every_verb_and_option_is_on_the_page():
    page = PAGES[Path("docs/reference/cli.md")]
    for words, command, _ in write_reference.verbs():
        assert f"# cotenant {words}\n" in page
        options = [param for param in command.params if isinstance(param, click.Option) and not param.hidden]
        missing = [
            option.opts[-1] for option in options if not re.search(rf"(?<![\w-]){option.opts[-1]}(?![\w-])", page)
        ]
        assert missing == [], words


@pytest.mark.parametrize("path", [path for path in PAGES if path.suffix == ".md"], ids=str)
def test_links_within_a_page_have_a_target(path):
    headings = {
        re.sub(r"[^\w -]", "", line.lstrip("# ")).lower().replace(" ", "-")
        for line in PAGES[path].splitlines()
        if line.startswith("#")
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGES[path])) - headings == set()


def test_every_verb_with_json_has_a_schema():
    documented = {
        " ".join(word for word in words.split() if not word.startswith("-")) for words in write_reference.OUTPUTS
    }
    with_json = {
        words
        for words, command, _ in write_reference.verbs()
        if not isinstance(command, click.Group) and any(option.name == "json" for option in command.params)
    }
    assert with_json - documented == set()


def test_schemas_refer_only_to_what_is_there():
    document = json.loads(PAGES[Path("docs/reference/outputs.schema.json")])
    referred = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(document)))
    assert referred <= document["$defs"].keys()
    assert "Estimate" in document["$defs"]


def test_man_page_is_valid_roff():
    if shutil.which("groff") is None:
        pytest.skip("no groff")
    page = PAGES[Path("share/man/man1/cotenant.1")]
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-z"], input=page, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
