"""The transcript in docs/how-to/use-with-slurm.md is what the commands print, on a real Slurm."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "use-with-slurm.md"
FIRST_ID = 17
TIMEOUT_S = 240


def blocks(language):
    """(Title or empty, text) of each fenced block of a language."""
    pattern = rf'^```{language}(?: title="([^"]+)")?\n(.*?)^```$'
    return re.findall(pattern, PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(text):
    """(Command, lines that it prints) of a console block."""
    found = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def matches(shown, printed):
    """Whether a printed line is the one shown; `...` stands for anything, blanks for any number of them."""
    pattern = r"\s+".join(re.escape(word).replace(r"\.\.\.", ".+?") for word in shown.split())
    return re.fullmatch(pattern, printed.strip()) is not None


def with_ids(text, first_id):
    """`text` with the ids of this cluster in place of those of the page."""
    return re.sub(r"\b(1[789])\b(?! of)", lambda match: str(int(match[1]) - FIRST_ID + first_id), text)


def next_id(cluster):
    """The id that Slurm gives to the next job."""
    return int(cluster.slurm("sbatch", "--parsable", "-H", "--wrap", "true")) + 1


def test_the_page_shows_what_is_printed(cluster):
    pytest.importorskip("torch")
    shutil.copy(ROOT / "examples" / "mlp.py", cluster.work)
    for title, text in (*blocks("bash"), *blocks("text")):
        if title:
            (cluster.work / title).write_text(text)
    first_id = next_id(cluster)
    cluster.slurm("scancel", str(first_id - 1))
    replayed = 0
    for _, text in blocks("console"):
        for command, shown in commands(with_ids(text, first_id)):
            done = subprocess.run(
                ["sh", "-c", f"{command} 2>&1"],
                env={**cluster.env, "COTENANT_TO": ""},
                cwd=cluster.work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
            printed = done.stdout.splitlines()
            assert done.returncode == 0, (command, printed)
            assert len(printed) == len(shown), (command, printed, shown)
            wrong = [pair for pair in zip(shown, printed, strict=True) if not matches(*pair)]
            assert wrong == [], command
            replayed += 1
    assert replayed == 9
