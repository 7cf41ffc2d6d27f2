"""Published runs of compiled scripts: rows of two tables, and the scripts, taken from clones of their repositories.

The logs of both repositories hold the script that made them, or lie beside it; the digest in the table says which text
it is. A row can be rebuilt where its script is found and this machine has the modules that it imports.
"""

from __future__ import annotations

import csv
import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GOLF, SPEEDRUN = "parameter_golf_runs.csv", "modded_nanogpt_runs.csv"
_RULER = "=" * 100
_BESIDE_LOG = "train_gpt.py beside log"
VOCABULARIES = (1024, 4096, 8192)
_TRAIN = """
import random, sys, sentencepiece
from pathlib import Path
random.seed(0)
size, path = int(sys.argv[1]), Path(sys.argv[2])
parts = [first + last for first in "bcdfghjklmnprstvwz" for last in ("a", "e", "i", "o", "an", "er", "on", "is")]
words = ["".join(random.choices(parts, k=random.randint(1, 4))) for _ in range(6 * size)]
text = path.with_suffix(".txt")
text.write_text("\\n".join(" ".join(random.choices(words, k=20)) for _ in range(4 * size)))
sentencepiece.SentencePieceTrainer.train(
    input=str(text), model_prefix=str(path.with_suffix("")), vocab_size=size, model_type="bpe", byte_fallback=True
)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedScript:
    """Runs of one script with the same settings.

    Attributes:
        table: file name of the table; `digest`: first 12 digits of the script's SHA-1.
        processes: how many the launcher started, one per GPU.
        env: environment variables with the settings of the run.
        allocated_mib, reserved_mib: as measured, of each run; reserved may be missing.
    """

    table: str
    digest: str
    gpu: str
    torch: str
    processes: int
    env: Mapping[str, str]
    paths: tuple[str, ...]
    allocated_mib: tuple[int, ...] = field(default=())
    reserved_mib: tuple[int, ...] = field(default=())

    @property
    def name(self) -> str:
        """The record's folder and the digest."""
        return f"{self.paths[0].split('/')[-2][:34]} {self.digest[:6]}"


def read_scripts(data: Path, table: str) -> list[PublishedScript]:
    """The rows of a table, those of one script with the same settings together."""
    groups: dict[tuple[object, ...], list[dict[str, str]]] = {}
    with (data / table).open(newline="", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["script_sha1"] and row["allocated_mib"]:
                groups.setdefault((row["script_sha1"], _processes(row), *_settings(row).items()), []).append(row)
    return [_script(table, rows) for rows in groups.values()]


def find_text(script: PublishedScript, clone: Path) -> str | None:
    """The script, from the clone of its repository; None if no file has the text of that digest."""
    for path in script.paths:
        for candidate in _candidates(_show(clone, path)):
            if hashlib.sha1(candidate.encode()).hexdigest().startswith(script.digest):
                return candidate
    return None


def make_tokenizers(python: str, folder: Path) -> None:
    """Train sentencepiece models of the scripts' names on made-up words, if they are not in `folder`."""
    for size in VOCABULARIES:
        path = folder / f"fineweb_{size}_bpe.model"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            subprocess.run([python, "-c", _TRAIN, str(size), str(path)], check=True, capture_output=True)


def _script(table: str, rows: Sequence[Mapping[str, str]]) -> PublishedScript:
    first = rows[0]
    return PublishedScript(
        table=table,
        digest=first["script_sha1"],
        gpu=first["gpu"],
        torch=first["torch"],
        processes=_processes(first),
        env=_settings(first),
        paths=tuple(row["script"] if row.get("script_text") == _BESIDE_LOG else row["path"] for row in rows),
        allocated_mib=tuple(int(row["allocated_mib"]) for row in rows),
        reserved_mib=tuple(int(row["reserved_mib"]) for row in rows if row["reserved_mib"]),
    )


def _processes(row: Mapping[str, str]) -> int:
    return int(row.get("world_size") or row.get("n_gpus") or 8) or 8


def _settings(row: Mapping[str, str]) -> dict[str, str]:
    """Settings that the log states and the script reads from its environment."""
    names = {"TRAIN_BATCH_TOKENS": "train_batch_tokens", "TRAIN_SEQ_LEN": "train_seq_len"}
    if "train_batch_tokens" not in row:
        return {}
    return {name: row[column] for name, column in names.items() if row[column]}


def _show(clone: Path, path: str) -> str:
    shown = subprocess.run(["git", "-C", clone, "show", f"HEAD:{path}"], capture_output=True, check=False)
    return shown.stdout.decode("utf-8", "replace")


def _candidates(text: str) -> Iterator[str]:
    """What of a log may be the script."""
    for part in (text, *text.split(_RULER)[:2]):
        yield from (part, part.strip(), part.rstrip(), part.strip() + "\n")
