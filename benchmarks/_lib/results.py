"""Writes result pages of benchmarks: dated file names, the commit, the versions of the packages."""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "results"


def add_write_option(parser: argparse.ArgumentParser) -> None:
    """Add `--write`, which refuses to start on a tree with uncommitted changes outside of `benchmarks/results`."""
    parser.add_argument(
        "--write",
        action=_WriteAction,
        nargs=0,
        default=False,
        help="write the result to benchmarks/results; needs a committed tree",
    )


class _WriteAction(argparse.Action):
    """Checks the tree while arguments are parsed, so that a refusal comes before an hour of measuring."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,  # noqa: ARG002 (signature of argparse.Action)
        option_string: str | None = None,  # noqa: ARG002
    ) -> None:
        changed = uncommitted_files()
        if changed:
            parser.error(f"--write needs a committed tree, found {len(changed)} changed files such as `{changed[0]}`")
        setattr(namespace, self.dest, True)


def uncommitted_files() -> list[str]:
    """Files of this checkout that differ from HEAD, outside of `benchmarks/results`."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "--", ":/", ":(exclude,top)benchmarks/results"],
        cwd=RESULTS,
        capture_output=True,
        text=True,
        check=False,
    )
    return [line[3:] for line in done.stdout.splitlines()]


def today() -> str:
    """The date in UTC, as in the names of the pages."""
    return datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat()


def write_result(name: str, text: str) -> None:
    """Write today's page `name`, measured without a GPU, and print its path."""
    path = RESULTS / f"{name}_no-gpu_{today()}.md"
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    print(f"\nwritten to benchmarks/results/{path.name}")


class ResultCache:
    """Results that a long run keeps in a file, so that it goes on where it was stopped.

    Only results of the same commit are read again.

    Attributes:
        saved_s: seconds that the results took that were read and not made.
    """

    def __init__(self, file: Path | None) -> None:
        self.file = file
        self.commit = commit()
        self.saved_s = 0.0
        text = file.read_text("utf-8") if file is not None and file.is_file() else ""
        records = [json.loads(line) for line in text.splitlines()]
        self._found = {record["key"]: record for record in records if record["commit"] == self.commit}

    def get(self, key: str, make: Callable[[], Any]) -> Any:
        """The cached result of that key, or what `make` returns, which JSON must be able to hold."""
        if key in self._found:
            self.saved_s += self._found[key]["took_s"]
            return self._found[key]["result"]
        began_s = time.perf_counter()
        result = make()
        took_s = time.perf_counter() - began_s
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as lines:
                record = {"commit": self.commit, "key": key, "took_s": round(took_s, 1), "result": result}
                lines.write(json.dumps(record) + "\n")
        return result


def commit() -> str:
    """The commit of this checkout, with `-dirty` appended if files differ from it.

    Those of `benchmarks/results` do not count: a figure is drawn before its page is written.
    """
    done = subprocess.run(["git", "describe", "--always"], cwd=RESULTS, capture_output=True, text=True, check=False)
    name = done.stdout.strip()
    return f"{name}{'-dirty' if uncommitted_files() else ''}" if name else "unknown"


def version(name: str) -> str:
    """Version of an installed package, or `absent`."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
