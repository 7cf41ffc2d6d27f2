"""Estimates published training scripts by the commands of their READMEs, and writes docs/explanation/tried-scripts.md.

`benchmarks/tried_scripts/records.json` lists what was tried, and what came of it; none of the scripts is in this
repository. `--checkouts DIR` runs them again: DIR/OWNER/NAME is a checkout of each repository. Without it, only the
page is written. A record that has a repository, a commit, a folder, options and a command, and no more, is a command
that has not been run yet. `first` is written by hand: the outcome of the first run of a command that was new then, with
all that it needs, before anything was mended for it.

A record may name an environment of `benchmarks/tried_scripts/environments.json`, whose packages the script needs:
`--environments DIR` has it as DIR/NAME. `--environment NAME` sets it for the commands that it runs. The other commands
run by `--python`. An error that is not in the record is a failure until a person decides: `--errors-are missing`.

    python scripts/try_scripts.py
    python scripts/try_scripts.py --checkouts ~/checkouts --python ~/env/bin/python --only karpathy/nanoGPT
    python scripts/try_scripts.py --checkouts ~/checkouts --environments ~/envs --environment timm-0.4 --only me/it
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "benchmarks" / "tried_scripts" / "records.json"
ENVIRONMENTS = RECORDS.with_name("environments.json")
PAGE = ROOT / "docs" / "explanation" / "tried-scripts.md"
OUTCOMES = {
    "answer": "an answer",
    "missing": "names what is missing: a file of data, a checkpoint, a network, an option",
    "environment": "lacks something here: a package, or the version of one that the script is for",
    "failed": "fails by cotenant",
}
TIMEOUT_S = 400
_COMMAND = ("repository", "commit", "folder", "options", "command")
GiB = 2**30


def run(record: dict[str, Any], checkouts: Path, python: str, by: str, new_error: str = "failed") -> dict[str, Any]:
    """The record with the outcome of its command now, and `by`, the commit of cotenant that made it.

    An error that is not the record's, or that a person has not judged, has the outcome `new_error`.
    """
    folder = checkouts / record["repository"] / record["folder"]
    command = [sys.executable, "-m", "cotenant", "estimate", "--json", "--no-cache", "--python", python]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    options = shlex.split(record["options"])
    settings, program = _split_settings(record["command"])
    words = [*command, *options, "--", *program]
    env = {**os.environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}", **settings}
    try:
        done = subprocess.run(
            words, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        answer = {"error": {"message": f"no answer within {TIMEOUT_S} s"}}
    except json.JSONDecodeError:
        answer = {"error": {"message": f"exit code {done.returncode}: {done.stderr[-200:]}"}}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found: dict[str, Any] = {"by": by, "cpu_s": round(cpu_s, 1)}
    if "error" in answer:
        found["message"] = answer["error"]["message"].replace(str(checkouts), "")[:300]
        # What an error is, a person decides.
        is_known = _without_paths(record.get("message", "")) == _without_paths(found["message"])
        found["outcome"] = record["outcome"] if is_known and record["outcome"] != "failed" else new_error
    else:
        found |= {"outcome": "answer", "reserved_bytes": answer["peak_reserved_bytes"]}
        found |= {"bound_bytes": answer["bound_bytes"], "partial": answer["partial"]}
    return {**{key: record[key] for key in (*_COMMAND, "environment", "first") if key in record}, **found}


def _store(records: Path, made: dict[str, Any]) -> None:
    """Put a record in the place of the one of the same command: another process may have changed others meanwhile."""
    with records.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        now = json.load(file)
        places = [index for index, record in enumerate(now) if _identity(record) == _identity(made)]
        for index in places:
            now[index] = made
        file.seek(0)
        file.write(json.dumps(now if places else [*now, made], indent=1) + "\n")
        file.truncate()


def _identity(record: dict[str, Any]) -> tuple[str, ...]:
    return tuple(record[key] for key in _COMMAND)


def _split_settings(command: str) -> tuple[dict[str, str], list[str]]:
    """Variables that a command sets before its first word, as in `PYTHONPATH=. python train.py`, and its words."""
    words = shlex.split(command)
    first = next((index for index, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word)), len(words))
    return dict(word.split("=", maxsplit=1) for word in words[:first]), words[first:]


def _without_paths(message: str) -> str:
    return re.sub(r"[\w.~/-]*/", "", message)


def _commit() -> str:
    """The commit of cotenant that runs, whose files have not been changed.

    Raises:
        SystemExit: they have.
    """
    git = ["git", "-C", str(ROOT)]
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "src"], check=False).returncode
    if changed:
        raise SystemExit(f"files of `{ROOT / 'src'}` are not committed: run this in a clean clone")
    return subprocess.run(
        [*git, "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()


def page(records: list[dict[str, Any]], environments: dict[str, str]) -> str:
    """The page, from the records and the texts of environments alone."""
    counts = Counter(record["outcome"] for record in records)
    times = sorted(record["cpu_s"] for record in records if record["outcome"] == "answer" and "by" in record)
    names = {record["repository"] for record in records}
    made = Counter(record["by"] for record in records if "by" in record)
    by = ", ".join(f"{commit} ({count})" for commit, count in made.most_common())
    older = len(records) - made.total()
    lines = [
        "# Scripts that were tried",
        "",
        f"{len(records)} commands of {len(names)} public repositories, unmodified, after their READMEs, for an",
        "A100-40GB. Data and weights were absent; `--synthetic-data` replaced data. `scripts/try_scripts.py` runs them",
        "again and writes this page from [its records](../../benchmarks/tried_scripts/records.json).",
        "",
        "Most ran with a CPU build of PyTorch, without cuDNN: workspaces of convolutions come from tables or a rule.",
        "Small networks differ most from an environment that has cuDNN. The CNN of yunjey/pytorch-tutorial reserves",
        "108 MiB with cuDNN 9.20, on a null GPU as in an estimate, and 64 MiB below; its ResNet 218 and 186 MiB.",
        "",
        f"Commits of cotenant that made these records: {by or 'none is named'}.",
        "Some were states of a branch before it was rebased; their changes have other names in the history.",
        f"The other {older}, marked `older`, are of earlier commits, with configurations of well-known models in the",
        "hub's cache. Their numbers may differ today, most of all where a script sets `cudnn.benchmark`.",
        "",
        "| outcome | commands |",
        "| --- | ---: |",
        *(f"| {text} | {counts[outcome]} |" for outcome, text in OUTCOMES.items()),
    ]
    ready = counts["answer"] + counts["failed"]
    if ready:
        share = 100 * counts["answer"] / ready
        lines += [
            "",
            f"Of the {ready} commands that lacked nothing, {share:.0f} % have an answer. Much of what failed among",
            "these commands was mended, so commands that nobody has tried will fail more often.",
        ]
    first = Counter(record["first"] for record in records if "first" in record)
    if first.total():
        lines += [
            "",
            f"What a stranger meets: of {first.total()} commands that nobody had tried and that lacked",
            f"nothing, {first['answer']} ({100 * first['answer'] / first.total():.0f} %) had one at the first try.",
        ]
    if times:
        middle, late = times[len(times) // 2], times[min(len(times) - 1, int(0.95 * len(times)))]
        lines += [
            "",
            f"CPU time of {len(times)} answers, of the commits named above: median {middle:.1f} s, P95 {late:.1f} s,",
            "on a shared machine of two cores, with the start of Python and the imports of the script.",
        ]
    used = Counter(record["environment"] for record in records if "environment" in record)
    if used:
        lines += [
            "",
            "Commands that name an environment ran in one with the versions that their repositories want:",
            "",
        ]
        lines += ["| environment | commands | packages |", "| --- | ---: | --- |"]
        lines += [f"| {name} | {count} | {environments[name]} |" for name, count in sorted(used.items())]
    lines += ["", "| repository | command | outcome | CPU | by |", "| --- | --- | --- | ---: | --- |"]
    lines += map(_row, sorted(records, key=lambda record: (record["repository"].lower(), record["command"])))
    return "\n".join(lines) + "\n"


def _row(record: dict[str, Any]) -> str:
    if record["outcome"] == "answer":
        text = f"{record['reserved_bytes'] / GiB:.2f} GiB reserved, bound {record['bound_bytes'] / GiB:.2f} GiB"
        text += " (partial)" if record["partial"] else ""
    else:
        text = f"{OUTCOMES[record['outcome']].partition(':')[0]}: {record['message']}".replace("|", "\\|")
    command = " ".join(filter(None, (record["options"], "--", record["command"]))).replace("|", "\\|")
    by = ", ".join(filter(None, (record.get("by", "older"), record.get("environment"))))
    where = f"`{'/'.join(filter(None, (record['repository'], record['folder'])))}` {record['commit']}"
    return f"| {where} | `{command}` | {text} | {record['cpu_s']:.1f} s | {by} |"


def main() -> None:
    """Run what was asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", metavar="REPOSITORY")
    parser.add_argument("--command", metavar="WORDS", default="", help="run only commands that contain these words")
    parser.add_argument("--missing", action="store_true", help="run what this commit of cotenant has not run yet")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of the records, as of another clone")
    parser.add_argument("--environments", type=Path, metavar="DIR")
    parser.add_argument("--environment", metavar="NAME", help="the environment of the commands that are run")
    parser.add_argument("--errors-are", choices=sorted(set(OUTCOMES) - {"answer"}), default="failed")
    options = parser.parse_args()
    environments = json.loads(ENVIRONMENTS.read_text())
    if options.checkouts:
        by = _commit()
        # As pip leaves it: with PYTHONDONTWRITEBYTECODE each estimate would compile it, in 0.9 s of CPU time.
        compileall.compile_dir(ROOT / "src", quiet=1)
        for index, record in enumerate(json.loads(options.records.read_text())):
            if options.only not in (None, record["repository"]) or options.command not in record["command"]:
                continue
            if options.missing and record.get("by") == by:
                continue
            wanted = options.environment or record.get("environment")
            if wanted is not None and (options.environments is None or wanted not in environments):
                raise SystemExit(f"the environment `{wanted}` needs `--environments DIR`, and a text in {ENVIRONMENTS}")
            given = {**record, "environment": wanted} if wanted is not None else record
            python = str(options.environments / wanted / "bin" / "python") if wanted is not None else options.python
            made = run(given, options.checkouts, python, by, options.errors_are)
            _store(options.records, made)
            print(f"{index} {made['repository']}: {made['outcome']} {made.get('message', '')}", flush=True)
    records = [record for record in json.loads(options.records.read_text()) if "outcome" in record]
    PAGE.write_text(page(records, environments))


if __name__ == "__main__":
    main()
