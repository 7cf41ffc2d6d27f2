"""The memory of a script that goes to another scheduler: of all its Python commands, or unknown.

A module of its own: scripts of Slurm and containers of Kubernetes have the same rule.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from cotenant.cli.output import note
from cotenant.core.errors import CotenantError
from cotenant.core.estimate import Estimate
from cotenant.jobfiles.python_commands import PythonCommand
from cotenant.jobfiles.shell_lines import may_run_several_at_once

MAX_COMMANDS = 4
"""Commands of one script that are estimated; the largest counts."""


def largest_estimate(
    verb: str, text: str, found: Sequence[PythonCommand], estimate: Callable[[PythonCommand], Estimate]
) -> Estimate | None:
    """The largest estimate of the commands `found` in the script `text`; None if one may need more, or all at once.

    `estimate` raises `CotenantError` for a command without one. What is not known is printed, after `verb`.
    """
    from cotenant.estimators.several_programs import has_no_training

    estimates, is_known = [], len(found) <= MAX_COMMANDS
    if may_run_several_at_once(text, len(found)):
        note(f"{verb}: it starts commands with `&`, so that several may need memory at once")
        is_known = False
    for command in found[:MAX_COMMANDS]:
        try:
            one = estimate(command)
        except CotenantError as error:
            note(f"{verb}: no estimate of {shown(command)}: {error.message}")
            is_known = is_known and has_no_training(error)
        else:
            estimates.append(one)
            is_known = is_known and not one.partial
    if len(found) > MAX_COMMANDS:
        note(f"{verb}: only {MAX_COMMANDS} of {len(found)} Python commands were estimated")
    if estimates and not is_known:
        # The largest of the known ones would be too little if another command needs more.
        note(f"{verb}: not all that its commands need is known; --gpu-mem declares it")
        return None
    return max(estimates, key=lambda one: one.bound_bytes, default=None)


def shown(command: PythonCommand) -> str:
    """The command for people, with its line in the script."""
    return f"`{shlex.join(command.words)}` (line {command.line})"
