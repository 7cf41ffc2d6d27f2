"""`cotenant estimate --model`: a model by name and a task, for people who have no script yet."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from cotenant.cli.estimate.options import ScriptOptions, SummaryOptions
from cotenant.cli.options import option
from cotenant.cli.output import note
from cotenant.cli.parameter_types import integer
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes
from cotenant.estimators.train_model import TASKS

_DEFAULT_LENGTH = 1024
_DEFAULT_TASK = "sft"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """A model of transformers, and what is to be trained."""

    SECTION = "Model by name"

    model: str | None = option(
        "--model",
        metavar="NAME",
        help="Instead of SCRIPT: a model of transformers by its name on the hub, a folder, or a `config.json`; "
        "--batch-size is its batch.",
    )
    task: str | None = option(
        "--task",
        type=click.Choice(tuple(TASKS)),
        help=f"{'; '.join(f'{name}: {means}' for name, means in TASKS.items())}.  [default: {_DEFAULT_TASK}]",
    )
    length: int | None = option(
        "--length",
        type=integer(minimum=1),
        metavar="N",
        help=f"Tokens of each sample.  [default: {_DEFAULT_LENGTH}]",
    )

    def script(self, script: ScriptOptions, summary: SummaryOptions) -> tuple[ScriptOptions, SummaryOptions]:
        """The options as if the shipped script of `--model` had been given; unchanged without it.

        Raises:
            UsageError: options that do not go together, or the model's configuration is not found.
        """
        if self.model is None:
            for name, value in (("--task", self.task), ("--length", self.length)):
                if value is not None:
                    raise UsageError(f"`{name}` is for `--model NAME`")
            return script, summary
        if script.script is not None:
            raise UsageError(f"`--model` is instead of a script, and `{script.script}` was given, too")
        if summary.tokens is not None:
            raise UsageError("`--tokens` is for the summary of a model", hint="of `--model`, samples have `--length N`")
        from cotenant.estimators import train_model
        from cotenant.estimators.model_configs import find_config
        from cotenant.estimators.trace_cache import default_folder

        traces = default_folder()
        downloads = (traces.parent if traces is not None else Path.cwd()) / "configs"
        config = find_config(self.model, allow_network=script.allow_network, downloads=downloads)
        args = {
            "--config": config,
            "--task": self.task or _DEFAULT_TASK,
            "--batch-size": summary.batch_size or 1,
            "--length": self.length or _DEFAULT_LENGTH,
        }
        words = [str(word) for pair in args.items() for word in pair]
        shipped = str(Path(train_model.__file__).absolute())
        return replace(script, script=shipped, args=words), replace(summary, batch_size=None)


def note_first_number(script: ScriptOptions) -> None:
    """Print the peak of `--model` by its configuration alone, where there is a formula: torch is not imported yet."""
    from cotenant.estimators.config_formula import first_peak_bytes

    given, config = _given(script)
    peak_bytes = first_peak_bytes(config, given["--task"], int(given["--batch-size"]), int(given["--length"]))
    if peak_bytes is not None:
        note(f"about {format_bytes(peak_bytes)} of tensors at the peak, by the configuration alone; tracing it ...")


def note_texts_alone(script: ScriptOptions) -> None:
    """Print, also beside JSON, that the samples of a model of images and texts have no images."""
    given, config = _given(script)
    if "vision_config" in config and given["--task"] != "classify":
        note("samples have no images if this model writes texts: images add memory that is not counted here")


def _given(script: ScriptOptions) -> tuple[dict[str, str], dict[str, Any]]:
    """The arguments of the shipped script, and the configuration that they name."""
    given = dict(zip(script.args[::2], script.args[1::2], strict=True))
    return given, json.loads(Path(given["--config"]).read_bytes())


def shown(command: Sequence[str]) -> str:
    """A command as people read it: without the folder of the shipped script."""
    from cotenant.estimators import train_model

    script, *args = command
    return shlex.join([Path(script).name if Path(script) == Path(train_model.__file__) else script, *args])
