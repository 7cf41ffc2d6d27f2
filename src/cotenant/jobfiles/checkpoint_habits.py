"""What a training script saves of its state, and whether it resumes from that, read from its text and its command line.

Pure: the script is parsed, nothing of it is executed. Known are `transformers.Trainer` and its descendants in trl and
sentence-transformers, Lightning's `Trainer`, accelerate, plain `torch.save`, and `cotenant.checkpoint`. Values that are
no constants in the text, such as `TrainingArguments(**config)`, are not known.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Library = Literal["cotenant.checkpoint", "transformers.Trainer", "Lightning", "accelerate", "torch.save"]

MAX_SCRIPT_BYTES = 256 * 1024
"""Longer scripts are not parsed: that takes a quarter of a second and more."""
HINTS = (b"Trainer", b"lightning", b"LightningCLI", b"ccelerat", b"torch.save", b"cotenant")
"""A text without any of these is not parsed."""

_TRAINER_PACKAGES = frozenset(("sentence_transformers", "transformers", "trl"))
_LIGHTNING_PACKAGES = frozenset(("lightning", "pytorch_lightning"))
_DEFAULT_SAVE_STEPS = 500
"""Source: transformers, training_args.py, `TrainingArguments.save_steps`."""
MAX_STEPS = 1e12
_UNKNOWN = object()
"""A value that is no constant in the text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointHabit:
    """How a script saves its state and goes on from there.

    Attributes:
        library: what saves.
        saves: how often, e.g. `every 500 steps`; `never`; empty if that is not known.
        resumes: the same command goes on from what was saved.
        missing: what to add so that the job can be moved, as code or words of the command.
    """

    library: Library
    saves: str
    resumes: bool
    missing: tuple[str, ...]

    def advice(self, *, is_checkpointable: bool) -> str | None:
        """A sentence for the user, without a final stop; None if nothing is to be said."""
        how_often = f" {self.saves}" if self.saves and self.saves != "never" else " its state"
        saves = "does not save its state" if self.saves == "never" else f"saves{how_often}"
        found = f"{saves} ({self.library})" + (" and resumes" if self.resumes and self.saves != "never" else "")
        steps = ", ".join(f"`{step}`" for step in self.missing)
        if is_checkpointable:
            return f"{found}; --checkpointable needs more, or a move loses its work: {steps}" if steps else None
        if not steps:
            return f"{found}: with --checkpointable it can be moved"
        return f"{found}; with --checkpointable it can be moved, once this is added: {steps}"


def find_habit(
    source: bytes, args: Sequence[str], *, launcher: Sequence[str] = (), is_wrapped: bool = False
) -> CheckpointHabit | None:
    """The habit of the script `source` with the arguments `args`; None if it has none that is known, or is no Python.

    `launcher`: name and options of what starts it as several processes; `is_wrapped`: behind `cotenant.checkpoint`.
    """
    script = _read_script(source)
    if script is None:
        return None
    options = _options(args)
    found = _of_library(script, options)
    if found is None:
        return None
    library, saves, resumes, missing = found
    if launcher and not is_wrapped:
        missing = (*missing, f"python -m cotenant.checkpoint {launcher[0]} ...")
    return CheckpointHabit(library=library, saves=saves, resumes=resumes, missing=missing)


class _Call:
    """A call: the last part of the name that is called, and its keyword arguments."""

    def __init__(self, node: ast.Call, name: str) -> None:
        self.name = name
        self.keywords = {keyword.arg: _constant(keyword.value) for keyword in node.keywords if keyword.arg is not None}
        self.is_open = any(keyword.arg is None for keyword in node.keywords)


@dataclass(slots=True)
class _Script:
    """What the text says: imported names by module, calls, and attributes."""

    modules: set[str] = field(default_factory=set)
    imported: dict[str, set[str]] = field(default_factory=dict)  # names by top-level module
    calls: list[_Call] = field(default_factory=list)
    attributes: set[tuple[str, str]] = field(default_factory=set)  # (name, attribute)
    words: set[str] = field(default_factory=set)  # attributes of anything

    def named(self, *names: str) -> Iterator[_Call]:
        """Calls of these."""
        return (call for call in self.calls if call.name in names)

    def has_call(self, *names: str) -> bool:
        """Whether one of these is called."""
        return next(self.named(*names), None) is not None

    def uses(self, packages: frozenset[str], ending: str) -> bool:
        """Whether a name with this ending is imported from one of the packages, or is an attribute of one."""
        names = {name for package in packages for name in self.imported.get(package, ())}
        names |= {attribute for owner, attribute in self.attributes if owner in packages}
        return any(name.endswith(ending) for name in names)


def _read_script(source: bytes) -> _Script | None:
    """None if it is too long, has nothing of interest, or cannot be parsed."""
    if len(source) > MAX_SCRIPT_BYTES or not any(word in source for word in HINTS):
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in the text is no concern of a reader
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # ValueError: a NUL, before Python 3.11.4. The last two: nested too deeply (`ast.parse`).
        return None
    script, aliases = _Script(), dict[str, str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                top = name.name.partition(".")[0]
                script.modules |= {top, name.name}
                aliases[name.asname or top] = top
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            top = node.module.partition(".")[0]
            script.modules |= {top, node.module, *(f"{node.module}.{name.name}" for name in node.names)}
            script.imported.setdefault(top, set()).update(name.name for name in node.names)
            aliases.update({name.asname or name.name: name.name for name in node.names})
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            script.words.add(node.attr)
            if isinstance(node.value, ast.Name):
                script.attributes.add((aliases.get(node.value.id, node.value.id), node.attr))
        elif isinstance(node, ast.Call):
            called = node.func
            if isinstance(called, ast.Attribute):
                script.calls.append(_Call(node, called.attr))
            elif isinstance(called, ast.Name):
                script.calls.append(_Call(node, aliases.get(called.id, called.id)))
    return script


def _constant(node: ast.expr) -> object:
    return node.value if isinstance(node, ast.Constant) else _UNKNOWN


def _options(args: Sequence[str]) -> dict[str, str]:
    """Values of `--name value` and `--name=value`, by name with underscores; `true` for an option without a value."""
    found: dict[str, str] = {}
    for place, word in enumerate(args):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            following = args[place + 1] if place + 1 < len(args) else "--"
            found[name.replace("-", "_")] = value if equals else "true" if following.startswith("--") else following
    return found


_Found = tuple[Library, str, bool, tuple[str, ...]]


def _of_library(script: _Script, options: Mapping[str, str]) -> _Found | None:
    """Library, how often it saves, whether it resumes, and what is missing in the script."""
    is_ours = "cotenant.checkpoint" in script.modules
    if script.uses(_TRAINER_PACKAGES, "Trainer"):
        return _of_trainer(script, options, has_callback=is_ours and script.has_call("for_trainer"))
    if script.modules & _LIGHTNING_PACKAGES and script.has_call("Trainer", "LightningCLI"):
        return _of_lightning(script, options, has_callback=is_ours and script.has_call("for_lightning"))
    if script.uses(frozenset(("accelerate",)), "Accelerator"):
        return _of_accelerate(script, options, is_ready=is_ours and script.has_call("for_accelerate"))
    if is_ours and script.has_call("install"):
        exits = script.has_call("exit_saved")
        return "cotenant.checkpoint", "on a signal", True, () if exits else ("checkpoint.exit_saved()",)
    if {("torch", "save"), ("torch", "load")} <= script.attributes:
        together = (
            "_together" if {"torch.distributed", "DistributedDataParallel"} & (script.modules | script.words) else ""
        )
        return (
            "torch.save",
            "",
            True,
            ("checkpoint.install()", f"if checkpoint.should_stop{together}(): save and checkpoint.exit_saved()"),
        )
    return None


def _of_trainer(script: _Script, options: Mapping[str, str], *, has_callback: bool) -> _Found:
    settings = [
        call
        for call in script.calls
        if call.name.endswith("TrainingArguments")
        or (call.name.endswith("Config") and {"save_strategy", "save_steps"} & call.keywords.keys())
    ]
    is_open = any(call.is_open for call in settings) or "parse_json_file" in script.words
    strategy: object = _UNKNOWN if is_open else "steps"
    steps: object = _UNKNOWN if is_open else _DEFAULT_SAVE_STEPS
    given: dict[str, object] = {}
    for call in settings:
        given |= call.keywords
    given |= options  # of HfArgumentParser
    strategy, steps = given.get("save_strategy", strategy), given.get("save_steps", steps)
    saves = {"no": "never", "epoch": "every epoch", "best": "whenever its metric improves"}.get(str(strategy), "")
    if strategy == "steps":
        saves = _every(steps)
    resumes = _goes_on(call.keywords.get("resume_from_checkpoint") for call in script.named("train"))
    if "resume_from_checkpoint" in options:
        resumes = resumes and options["resume_from_checkpoint"].lower() == "true"
    missing = [] if has_callback else ["callbacks=[checkpoint.for_trainer()]"]
    if not resumes:
        missing.append("trainer.train(resume_from_checkpoint=checkpoint.newest(output_dir))")
    if str(given.get("save_only_model", "")).lower() == "true":
        missing.append("save_only_model=False")
    return "transformers.Trainer", saves, resumes, tuple(missing)


def _every(steps: object) -> str:
    """`every 500 steps`; a share of all steps is a number below 1. Empty for what is no such number."""
    try:
        number = float(str(steps))
    except ValueError:
        return ""
    if not 0 < number < MAX_STEPS:  # also false for nan
        return ""
    return f"every {number:.0%} of its steps" if number < 1 else f"every {number:.0f} steps"


def _goes_on(values: Iterator[object]) -> bool:
    """Whether one of these arguments names what to resume from, and not always the same file."""
    return any(
        value is True or value is _UNKNOWN or (isinstance(value, str) and value.endswith(("last", "cotenant.ckpt")))
        for value in values
    )


def _of_lightning(script: _Script, options: Mapping[str, str], *, has_callback: bool) -> _Found:
    saves = "every epoch"  # without a ModelCheckpoint, `enable_checkpointing` adds one
    for call in script.named("ModelCheckpoint"):
        steps, epochs = call.keywords.get("every_n_train_steps"), call.keywords.get("every_n_epochs")
        if isinstance(steps, int):
            saves = f"every {steps} steps"
        elif isinstance(epochs, int) and epochs > 1:
            saves = f"every {epochs} epochs"
        elif _UNKNOWN in (steps, epochs) or call.is_open or "train_time_interval" in call.keywords:
            saves = ""
    if any(call.keywords.get("enable_checkpointing") is False for call in script.named("Trainer")):
        saves = "never"
    resumes = (
        _goes_on(call.keywords.get("ckpt_path") for call in script.named("fit")) or options.get("ckpt_path") == "last"
    )
    missing = () if has_callback else ('callbacks=[checkpoint.for_lightning("state")]',)
    if not resumes:
        missing = (*missing, 'trainer.fit(model, ckpt_path=checkpoint.newest("state"))')
    return "Lightning", saves, resumes, missing


def _of_accelerate(script: _Script, options: Mapping[str, str], *, is_ready: bool) -> _Found:
    if is_ready:
        return "accelerate", "on a signal", True, ()
    saves = "" if script.has_call("save_state") else "never"
    steps = options.get("checkpointing_steps")
    if steps is not None and not saves:
        saves = "every epoch" if steps == "epoch" else _every(steps)
    resumes = script.has_call("load_state")
    if "resume_from_checkpoint" in script.words:  # an option of the script decides, as in the examples of accelerate
        resumes = resumes and options.get("resume_from_checkpoint") in ("latest", "true")
    steps_to_add = (
        'saved = checkpoint.for_accelerate(accelerator, "state")',
        "range(saved.load(), steps)",
        "saved.step_end(step + 1)",
    )
    return "accelerate", saves, resumes, steps_to_add
