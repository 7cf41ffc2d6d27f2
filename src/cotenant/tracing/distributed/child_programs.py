"""Python programs that a script starts, as command-line tools and launchers do: trainers run in this process.

A program that uses torch is taken for one. A trace follows one process, and a child would have no simulated GPU.
Others, such as `git`, are started, but for those of `file_commands`. The error
of a child that fails is the error of the script. A trainer that is another rank of a distributed one, as Lightning and
other launchers start them, does not run: rank 0 is traced.
A trainer that replaces the script (`os.execvp` and its like, as axolotl starts `accelerate launch`) ends it, too.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from cotenant.core.errors import UsageError
from cotenant.tracing.distributed import local_rank_option
from cotenant.tracing.distributed.file_commands import run_file_command
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase
from cotenant.tracing.patches.terminal import command_words
from cotenant.tracing.process.launcher_env import apply_launcher
from cotenant.tracing.process.program import Program, find_program
from cotenant.tracing.process.run_program import run_program

_SHELL_SYNTAX = re.compile(r"[|&;<>`$(){}*?]")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_USES_TORCH = re.compile(rb"\b(torch|lightning|transformers|accelerate)\b")
_IMPORT = re.compile(
    rb"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+([\w, \t]+)|import[ \t]+([\w., \t]+))", re.MULTILINE
)
_NOT_TRAINING = ("torch", "pip", "wandb", "tensorboard")
"""Packages whose modules are programs that do not train."""
_IMPORTS_AWAY = 2  # modules of a program in which the name of torch is looked for
_MAX_READ_MODULES = 50
_RANKS = ("RANK", "LOCAL_RANK")
_STREAMS = ("stdout", "stderr", "bufsize", "universal_newlines", "text", "encoding", "errors")
"""Arguments of `Popen` that say where a child's output goes, and as what it is read."""


def patches(context: PatchContext) -> list[Patch]:
    """The start of programs by `subprocess`, `os.system` and `os.exec*`."""
    reason = "A trace follows one process; a second one would have no simulated GPU."
    return [
        Patch(
            target="subprocess:Popen.__init__", phase=Phase.DISTRIBUTED,
            replacement=functools.partial(_running_training_here, context), wraps=True, reason=reason,
            source="Lib/subprocess.py, `Popen.__init__`",
        ),
        Patch(
            target="os:system", phase=Phase.DISTRIBUTED, replacement=functools.partial(_system, context), wraps=True,
            reason=reason, source="Modules/posixmodule.c, `os_system_impl`",
        ),
        *(
            Patch(
                target=f"os:{name}", phase=Phase.DISTRIBUTED, replacement=functools.partial(_exec, context),
                wraps=True, reason=reason, source="Lib/os.py, `_execvpe`, by which the others call these two",
            )
            for name in ("execv", "execve")
        ),
    ]  # fmt: skip


def _running_training_here(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, args: Any, *more: Any, **kwargs: Any) -> None:
        env, cwd = kwargs.get("env"), kwargs.get("cwd")
        program, assigned = training_program(
            args, str(Path.cwd()) if cwd is None else os.fspath(cwd), env or os.environ
        )
        printed, code = io.BytesIO(), None
        if program is not None:
            with _printing_to(printed, kwargs.get("stdout")):
                code = _run_here(context, program, {**(env or {}), **assigned}, cwd)
        else:
            code = run_file_command(args, cwd)
        if code is None:
            original(self, args, *more, **kwargs)
            return
        streams = {name: kwargs[name] for name in _STREAMS if name in kwargs}
        with tempfile.TemporaryFile() as output:
            output.write(printed.getvalue())
            output.seek(0)
            original(self, ["sh", "-c", f"cat; exit {code}"], stdin=output, **streams)

    return init


@contextlib.contextmanager
def _printing_to(printed: io.BytesIO, stdout: Any) -> Iterator[None]:
    """What is printed goes to `printed` if the script reads it from a pipe, `stdout`."""
    if stdout != subprocess.PIPE:
        yield
        return
    text = io.TextIOWrapper(printed, encoding="utf-8", write_through=True)
    try:
        with contextlib.redirect_stdout(text):
            yield
    finally:
        text.detach()  # else it would close `printed`


def _system(context: PatchContext, original: Any) -> Any:
    @functools.wraps(original)
    def system(command: Any) -> int:
        program, assigned = training_program(command, str(Path.cwd()), os.environ)
        code = run_file_command(command, None) if program is None else _run_here(context, program, assigned, None)
        if code is None:
            status: int = original(command)
            return status
        return code << 8  # as wait(2) has it

    return system


def _exec(context: PatchContext, original: Any) -> Any:
    failed: list[tuple[Any, OSError]] = []  # arguments of programs that ran here, and what they raised

    @functools.wraps(original)
    def execute(path: Any, args: Any, *env: Mapping[str, str]) -> None:
        if failed and failed[-1][0] is args:  # `execvp` takes it for a missing program, and tries the next folder
            raise failed[-1][1]
        program = None
        if Path(os.fsdecode(path)).is_file():  # `execvp` tries every folder of `PATH`
            program, _ = training_program([path, *args[1:]], str(Path.cwd()), *(env or (os.environ,)))
        if program is None:
            original(path, args, *env)
            return
        try:
            code = _run_here(context, program, env[0] if env else {}, None)
        except OSError as error:
            failed.append((args, error))
            raise
        sys.exit(code)

    return execute


def training_program(args: Any, workdir: str, env: Mapping[str, str]) -> tuple[Program | None, dict[str, str]]:
    """The Python program of a command that uses torch, and the variables assigned before it; None for any other."""
    text = os.fsdecode(args) if isinstance(args, (str, bytes)) else ""
    words, assigned = command_words(args), {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        assigned[name] = value
    if not words or _SHELL_SYNTAX.search(text):
        return None, {}
    try:
        program = find_program(words, workdir=workdir, env=env, python=sys.executable)
    except (UsageError, OSError, ValueError):
        return None, {}
    return (program, assigned) if program.launcher or _uses_torch(program, workdir) else (None, {})


def _uses_torch(program: Program, workdir: str) -> bool:
    """Whether the program names torch, or a module of its own does that it imports: `from models import create`."""
    script = Path(workdir, program.target) if program.kind != "module" else _module_file(program.target, workdir)
    files, seen = [script] if script is not None else [], set[Path]()
    folder = script.parent if script is not None and program.kind != "module" else Path(workdir)
    for _ in range(1 + _IMPORTS_AWAY):
        imported: list[Path] = []
        for file in files[:_MAX_READ_MODULES]:
            seen.add(file)
            try:
                source = file.read_bytes()
            except OSError:
                continue
            if _USES_TORCH.search(source):
                return True
            imported += own_modules(source, folder)
        files = [file for file in dict.fromkeys(imported) if file not in seen]
    return False


def own_modules(source: bytes, folder: Path) -> list[Path]:
    """Files below `folder` that a source imports by absolute names."""
    names: list[str] = []
    for module, parts, modules in _IMPORT.findall(source):
        names += _first_words(modules)
        if module:
            names += [module.decode(), *(f"{module.decode()}.{part}" for part in _first_words(parts))]
    places = [Path(folder, *name.split(".")) for name in names if name.strip(".")]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return [file for file in files if file.is_file()]


def _first_words(parts: bytes) -> list[str]:
    """The names in `models.steps as steps, os`."""
    return [part.split()[0] for part in parts.decode().split(",") if part.split()]


def _module_file(name: str, workdir: str) -> Path | None:
    """The source that `python -m name` runs. `importlib.util.find_spec` would import the packages around it."""
    first, *others = name.split(".")
    if first in _NOT_TRAINING:
        return None
    spec = PathFinder.find_spec(first, [workdir, *sys.path])
    for part in others:
        spec = PathFinder.find_spec(part, spec.submodule_search_locations) if spec is not None else None
    if spec is not None and spec.submodule_search_locations:
        spec = PathFinder.find_spec("__main__", spec.submodule_search_locations)
    return Path(spec.origin) if spec is not None and spec.origin else None


def _run_here(context: PatchContext, program: Program, env: Mapping[str, str], cwd: Any) -> int:
    """Run it, in its folder and with its variables; its exit code. Another rank succeeds at once."""
    if _is_other_rank(env):
        return 0
    had_local_rank = local_rank_option.give(False)
    with _as_child(env, cwd):
        plan = apply_launcher(program.launcher, {"target": program.target}, context.gpu.count)
        if plan.warning:
            context.recorder.warn(plan.warning)
        if program.launcher:
            recorder = context.recorder
            recorder.header = replace(recorder.header, processes=plan.total)
        try:
            run_program(replace(program, args=(*plan.more_args, *program.args)).to_request())
        except SystemExit as stop:
            return _code(stop.code)
        finally:
            local_rank_option.give(had_local_rank)
    return 0


def _is_other_rank(env: Mapping[str, str]) -> bool:
    """Whether these variables make a program one of the ranks beside rank 0, which is this process or another child.

    Lightning, lightning/fabric/strategies/launchers/subprocess_script.py, `_call_children_scripts`.
    """
    return any(env.get(name, "0") not in {"0", os.environ.get(name)} for name in _RANKS)


def _code(code: object) -> int:
    if code is None:
        return 0
    return code & 255 if isinstance(code, int) else 1


@contextlib.contextmanager
def _as_child(env: Mapping[str, str], cwd: Any) -> Iterator[None]:
    saved_env, saved_cwd, saved_argv, saved_path = dict(os.environ), Path.cwd(), sys.argv, list(sys.path)
    main = sys.modules["__main__"]
    try:
        os.environ.update(env)
        if cwd is not None:
            os.chdir(cwd)
        yield
    finally:
        os.environ.clear()
        os.environ.update(saved_env)
        os.chdir(saved_cwd)
        sys.argv, sys.path[:] = saved_argv, saved_path
        sys.modules["__main__"] = main
