"""Estimates of code of `torch.compile` beside PyTorch's CUDA build on a null GPU, and beside published runs.

    python -m benchmarks.estimator.compiled --cuda-python VENV/bin/python [--kinds NAME ...] [--saved FILE] [--write]
    python -m benchmarks.estimator.compiled --clones FOLDER --python VENV/bin/python [--scripts DIGEST ...] [--write]

The first form runs each kind of `jobs/compiled_row.py` eagerly, with `--compiled-code inductor`, and on the null GPU.
The second one rebuilds rows of `published_memory`: FOLDER has clones named `parameter-golf` and `modded-nanogpt`, whose
logs hold the scripts. VENV has a build of torch, and what the scripts import, with sentencepiece. Tokens are synthetic,
tokenizers are trained on made-up words. `--published-on-null-gpu` runs the scripts on a null GPU, too: VENV has a CUDA
build then. `--draw N` draws N of the scripts that VENV's packages suffice for, and runs them in that order. Both
forms together write one page. `--saved FILE` continues a run of the same commit; `--minutes N` starts no further job
after N minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._lib.results import ResultCache, add_write_option, commit, today, version, write_result
from benchmarks.estimator.compiled_scripts import (
    GOLF,
    SPEEDRUN,
    PublishedScript,
    find_text,
    make_tokenizers,
    read_scripts,
)
from cotenant.core.errors import CotenantError
from cotenant.core.ports import EstimateRequest, TraceOptions
from cotenant.core.stats import quantile
from cotenant.core.units import MiB
from cotenant.estimators.traced import TracedEstimator

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "benchmarks" / "estimator" / "jobs" / "compiled_row.py"
DATA = ROOT.parent / "shared" / "data" / "published_memory"
CLONES = {GOLF: "parameter-golf", SPEEDRUN: "modded-nanogpt"}
KINDS = (
    "whole", "break", "disabled-part", "checkpoint", "object", "lengths", "dynamic", "blocks", "loss-function",
    "compiled-step", "compiled-step-function", "muon", "ddp", "cuda-graphs",
)  # fmt: skip
GPU, PUBLISHED_GPU = "A100-40GB", "H100-80GB"
UNCHECKED = {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}
"""Some scripts describe strides of their operators falsely, which the torch of their time did not check."""
TEXTS = {GOLF: "1024:int64:1024", SPEEDRUN: "1024:int64:50257"}
"""Synthetic texts, of as many tokens as the scripts' tokenizers have: some scripts look for the last one."""
TIMEOUT_S = 900.0
SEED = 0
Figures = Mapping[str, Any]
"""`allocated` and `reserved` in MiB, `cpu_s`, `eager`: whether a part ran eagerly; or `problem`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuda-python", help="interpreter with a CUDA build of torch, for the null GPU")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the traces of published scripts")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--clones", type=Path, help="folder of clones with published scripts")
    parser.add_argument("--scripts", nargs="*", metavar="DIGEST", help="beginnings of digests; by default all scripts")
    parser.add_argument("--draw", type=int, metavar="N", help=f"a sample of N scripts, of seed {SEED}")
    parser.add_argument("--published-on-null-gpu", action="store_true", help="published scripts on a null GPU, too")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--saved", type=Path, help="file of results, to continue")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--quick", action="store_true", help="one kind, without the null GPU")
    add_write_option(parser)
    args = parser.parse_args()
    results = Results(args.saved, args.minutes)
    kinds = [
        (kind, *kind_figures(results, kind, args.cuda_python)) for kind in (KINDS[:1] if args.quick else args.kinds)
    ]
    lines = kind_lines(kinds)
    if args.clones is not None:
        lines += ["", *published_lines(published(results, args))]
    text = "\n".join(lines)
    print(text)
    if args.write:
        write_result("compiled", "\n".join([*head_lines(args), "", text]))
    return 0


class Results:
    """Figures by key, saved; no new ones after some minutes."""

    def __init__(self, file: Path | None, minutes: float) -> None:
        self._cache = ResultCache(file)
        self._ends_s = time.monotonic() + 60 * minutes

    def get(self, key: str, make: Callable[[], Figures]) -> Figures:
        """The figures of a key; `problem` is `not run` where time is over."""
        try:
            found: Figures = self._cache.get(key, lambda: self._made(make))
        except TimeoutError:
            return {"problem": "not run"}
        return found

    def _made(self, make: Callable[[], Figures]) -> Figures:
        if time.monotonic() > self._ends_s:
            raise TimeoutError
        return make()


def figures(
    command: Sequence[str], *, workdir: Path, python: str, gpu: str, how: str, trace: TraceOptions,
    env: Mapping[str, str] | None = None,
) -> Figures:  # fmt: skip
    """What one run says; `how`: `trace` or `null-gpu`."""
    estimator = TracedEstimator(python=python, backend=how, null_gpu_timeout_s=TIMEOUT_S)  # type: ignore[arg-type]
    request = EstimateRequest(
        command=tuple(command), workdir=str(workdir), env={**os.environ, **(env or {})}, gpu=gpu, timeout_s=TIMEOUT_S,
        trace=trace,
    )  # fmt: skip
    before = cpu_s()
    try:
        found = estimator.explain(request)
    except CotenantError as error:
        return {"problem": error.message.partition("\n")[0][:200], "cpu_s": round(cpu_s() - before, 1)}
    return {
        "allocated": round((found.estimate.peak_allocated_bytes or 0) / MiB),
        "reserved": round(found.estimate.peak_reserved_bytes / MiB),
        "eager": "compiled" in found.trace.header.runs_otherwise,
        "warnings": list(found.trace.warnings),
        "cpu_s": round(cpu_s() - before, 1),
    }


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# -- kinds, judged by the null GPU --------------------------------------------------------------------------------


def kind_figures(results: Results, kind: str, cuda_python: str | None) -> tuple[Figures, Figures, Figures]:
    """Eager, with Inductor, and of the null GPU."""
    launcher = ("torchrun", "--standalone", "--nproc_per_node=2") if kind == "ddp" else ()
    command = (*launcher, JOB.name, kind)

    def run(how: str, compiled_code: str) -> Figures:
        python = sys.executable if how == "trace" else str(cuda_python)
        trace = TraceOptions(compiled_code=compiled_code)  # type: ignore[arg-type]
        print(f"{kind}: {how}, {compiled_code}", file=sys.stderr, flush=True)
        return figures(command, workdir=JOB.parent, python=python, gpu=GPU, how=how, trace=trace)

    null: Figures = {"problem": "no CUDA build"}
    if cuda_python is not None:
        null = results.get(f"null {kind}", lambda: run("null-gpu", "eager"))
    return (
        results.get(f"eager {kind}", lambda: run("trace", "eager")),
        results.get(f"inductor {kind}", lambda: run("trace", "inductor")),
        null,
    )


def kind_lines(rows: Sequence[tuple[str, Figures, Figures, Figures]]) -> list[str]:
    lines = [
        "| kind | eager trace | `inductor` | null GPU | difference | CPU s, `inductor` / null GPU |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    differences = []
    for kind, eager, ours, null in rows:
        cell = ""
        if "allocated" in ours and "allocated" in null:
            pairs = [(ours[name], null[name]) for name in ("allocated", "reserved")]
            cell = " ".join(f"{mine / true - 1:+.1%}" for mine, true in pairs)
            differences.append([abs(mine / true - 1) for mine, true in pairs])
        times = f"{ours.get('cpu_s', '')} / {null.get('cpu_s', '')}"
        name = f"{kind}{' (a part runs eagerly)' if ours.get('eager') else ''}"
        lines.append(f"| {name} | {shown(eager)} | {shown(ours)} | {shown(null)} | {cell} | {times} |")
    if differences:
        allocated, reserved = zip(*differences, strict=True)
        for name, values in (("allocated", allocated), ("reserved", reserved)):
            lines.append(f"\n{name}: median {quantile(values, 0.5):.1%}, largest {max(values):.1%} of {len(values)}.")
    return lines


def shown(found: Figures) -> str:
    return f"{found['allocated']:,} ({found['reserved']:,})" if "allocated" in found else str(found["problem"])


# -- published runs -----------------------------------------------------------------------------------------------


def published(results: Results, args: argparse.Namespace) -> list[tuple[PublishedScript, Figures, Figures]]:
    """Each published script, its trace and its run on the null GPU; of those that are left out, `not run`."""
    scripts = [
        (script, args.clones / clone) for table, clone in CLONES.items() for script in read_scripts(args.data, table)
    ]
    chosen = [script for script, _ in scripts]
    if args.scripts is not None:
        chosen = [script for script in chosen if any(script.digest.startswith(digest) for digest in args.scripts)]
    if args.draw is not None:
        there = modules_of(args.python)
        possible = [one for one in scripts if one[0] in chosen and can_run(find_text(*one), there, args.python)]
        chosen = [script for script, _ in random.Random(SEED).sample(possible, min(args.draw, len(possible)))]
    found: dict[int, tuple[PublishedScript, Figures, Figures]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for script, clone in sorted(scripts, key=lambda one: chosen.index(one[0]) if one[0] in chosen else len(chosen)):
            figures_of: dict[str, Figures] = {}
            for how, wanted in (("trace", True), ("null-gpu", args.published_on_null_gpu)):
                key = f"published {how} {script.digest} {script.processes} {dict(script.env)}"
                run = estimating(script, clone, Path(folder), args.python, how)
                is_chosen = wanted and script in chosen
                figures_of[how] = results.get(key, run) if is_chosen else {"problem": "not run"}
            found[id(script)] = (script, figures_of["trace"], figures_of["null-gpu"])
    return [found[id(script)] for script, _ in scripts]


def modules_of(python: str) -> set[str]:
    """Names of the modules that an environment has."""
    code = "import pkgutil, sys; print(*(m.name for m in pkgutil.iter_modules()), *sys.stdlib_module_names)"
    command = [python, "-c", code]
    return set(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split())


def can_run(text: str | None, modules: Container[str], python: str) -> bool:
    """Whether an environment can parse a script and has what it imports."""
    if text is None:
        return False
    command = [python, "-c", "import ast, sys; ast.parse(sys.stdin.read())"]
    if subprocess.run(command, input=text.encode(), capture_output=True, check=False, timeout=60).returncode:
        return False
    imported = re.findall(r"^\s*(?:import|from)\s+([A-Za-z_]\w*)", text, re.MULTILINE)
    return all(name in modules for name in imported)


def estimating(script: PublishedScript, clone: Path, folder: Path, python: str, how: str) -> Callable[[], Figures]:
    def run() -> Figures:
        text = find_text(script, clone)
        if text is None:
            return {"problem": "the script is not in the clone"}
        print(f"{script.name}, {script.processes} processes, {how}", file=sys.stderr, flush=True)
        tokenizers = folder / "tokenizers"
        make_tokenizers(python, tokenizers)
        workdir = folder / f"{script.digest}-{script.processes}"
        for name in ("data", "logs"):
            (workdir / name).mkdir(parents=True, exist_ok=True)
        (workdir / "train_gpt.py").write_text(text, encoding="utf-8")
        if not (workdir / "data" / "tokenizers").exists():
            (workdir / "data" / "tokenizers").symlink_to(tokenizers)
        command = ("torchrun", "--standalone", f"--nproc_per_node={script.processes}", "train_gpt.py")
        trace = TraceOptions(compiled_code="inductor", synthetic_data=(TEXTS[script.table],))
        env = {**UNCHECKED, **script.env}
        return figures(command, workdir=workdir, python=python, gpu=PUBLISHED_GPU, how=how, trace=trace, env=env)

    return run


def published_lines(found: Sequence[tuple[PublishedScript, Figures, Figures]]) -> list[str]:
    lines = [
        "| published script | runs | torch | measured | trace | difference | null GPU | difference | CPU s |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    errors: dict[str, list[float]] = {"trace": [], "null GPU": []}
    for script, *both in found:
        if all("allocated" not in one for one in both):
            continue
        for name, one in zip(errors, both, strict=True):
            if "allocated" in one:
                errors[name] += [one["allocated"] / value - 1 for value in script.allocated_mib]
        trace, null = both
        name = f"{script.name}{' (a part runs eagerly)' if trace.get('eager') else ''}"
        times = " / ".join(str(one.get("cpu_s", "")) for one in both)
        lines.append(
            f"| {name} | {len(script.allocated_mib)} | {script.torch or 'not stated'} | {measured(script)} "
            f"| {shown(trace)} | {differences(script, trace)} | {shown(null)} | {differences(script, null)} | {times} |"
        )
    for name, values in errors.items():
        if values:
            sizes = [abs(error) for error in values]
            lines.append(
                f"\n{name}, allocated, of {len(sizes)} rows: median {quantile(sizes, 0.5):.1%}, "
                f"P95 {quantile(sizes, 0.95):.1%}, largest {max(sizes):.1%}."
            )
    return [*lines, *problem_lines(found)]


def measured(script: PublishedScript) -> str:
    reserved = f" ({quantile(script.reserved_mib, 0.5):,.0f})" if script.reserved_mib else ""
    return f"{quantile(script.allocated_mib, 0.5):,.0f}{reserved}"


def differences(script: PublishedScript, one: Figures) -> str:
    """Of allocated and of reserved bytes, from the medians of the runs."""
    pairs = [("allocated", script.allocated_mib), ("reserved", script.reserved_mib)]
    return ", ".join(f"{one[name] / quantile(of, 0.5) - 1:+.1%}" for name, of in pairs if of and name in one)


def problem_lines(found: Sequence[tuple[PublishedScript, Figures, Figures]]) -> list[str]:
    problems: Counter[tuple[str, str]] = Counter()
    for script, *both in found:
        for name, one in zip(("trace", "null GPU"), both, strict=True):
            if "allocated" not in one:
                problems[name, one["problem"]] += len(script.allocated_mib)
    lines = ["", "| rows without an estimate | of | because |", "| ---: | --- | --- |"]
    return lines + [f"| {count} | {name} | {text} |" for (name, text), count in problems.most_common()]


def head_lines(args: argparse.Namespace) -> list[str]:
    """What was run, and how to repeat it."""
    command = "python -m benchmarks.estimator.compiled --clones FOLDER --python VENV/bin/python"
    command += " --cuda-python VENV/bin/python" if args.kinds else " --kinds"
    command += f" --draw {args.draw}" if args.draw is not None else ""
    command += " --published-on-null-gpu" if args.published_on_null_gpu else ""
    return [
        f"# Estimates of compiled code, {today()}",
        "",
        f"Commit {commit()}; torch {version('torch')}; {os.cpu_count()} cores, no GPU.",
        f"Repeat with `{command}`.",
        f"MiB allocated (reserved). Kinds: {GPU}, judged by PyTorch's CUDA build of the same version on a null GPU.",
        f"Published: {PUBLISHED_GPU}; whole runs with evaluation, repeated runs differ by 1.4 to 2 %.",
        f"Estimates of published scripts use torch {torch_of(args.python)}, measurements that of the column `torch`.",
        "A difference is of allocated and of reserved bytes, CPU seconds are of the trace and of the null GPU.",
    ]


def torch_of(python: str) -> str:
    """The version of torch in another environment."""
    command = [python, "-c", "import importlib.metadata; print(importlib.metadata.version('torch'))"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
