"""The option `--local-rank` that `python -m torch.distributed.launch` gives to a script.

PyTorch 2 spells it with a dash; before it had an underscore, and many scripts know it so only: with PyTorch 2 the
launcher stops them. Each parser of the command line gets the spelling that it knows, or none, with a warning.
Source: torch/distributed/run.py, `config_from_args`.
"""

from __future__ import annotations

import functools
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from cotenant.tracing.patches.registry import AbsenceContext, Entry, Patch, Phase, Warns

_SPELLINGS = ("--local-rank", "--local_rank")
_GIVEN = f"{_SPELLINGS[0]}=0"


_given = False


def give(given: bool) -> bool:
    """Say whether the program that starts now gets the option; whether the one before had it."""
    global _given
    before, _given = _given, given
    return before


def patches(context: AbsenceContext) -> list[Entry]:
    """The functions of `argparse` that read the command line."""
    option = _LocalRankOption(context.recorder)
    replacements = {"parse_args": option.as_parse_args, "parse_known_args": option.as_parse_known_args}
    return [
        Patch(
            target=f"argparse:ArgumentParser.{name}", phase=Phase.LIBRARIES, replacement=replacement, wraps=True,
            reason="The launcher that the command names gives the script `--local-rank`.",
            source="torch/distributed/run.py, `config_from_args`",
        )
        for name, replacement in replacements.items()
    ]  # fmt: skip


class _LocalRankOption:
    def __init__(self, recorder: Warns) -> None:
        self._recorder = recorder
        self._is_within = False  # `parse_args` calls `parse_known_args`

    def as_parse_args(self, original: Any) -> Any:
        """`ArgumentParser.parse_args`, which fails at an option that it does not know."""

        @functools.wraps(original)
        def parse_args(parser: ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            words = self._words(parser, args)
            if words is None:
                return original(parser, args, namespace)
            if _GIVEN in words and _SPELLINGS[0] not in _known(parser):
                words.remove(_GIVEN)
                self._warn()
            before, self._is_within = self._is_within, True
            try:
                return original(parser, words, namespace)
            finally:
                self._is_within = before

        return parse_args

    def as_parse_known_args(self, original: Any) -> Any:
        """`ArgumentParser.parse_known_args`, which leaves what it does not know to another parser."""

        @functools.wraps(original)
        def parse_known_args(parser: ArgumentParser, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            words = None if self._is_within else self._words(parser, args)
            return original(parser, args if words is None else words, namespace)

        return parse_known_args

    def _words(self, parser: ArgumentParser, args: Sequence[str] | None) -> list[str] | None:
        """What `parser` is to read: `args` with the option where they are the script's; None: without it."""
        if not _given:
            return None
        words = list(sys.argv[1:] if args is None else args)
        if words == sys.argv[1:]:
            words = [_GIVEN, *words]
        if _GIVEN not in words:
            return None
        known = _known(parser)
        if known and _SPELLINGS[0] not in known:
            self._warn()
            words = [f"{known[0]}=0" if word == _GIVEN else word for word in words]
        return words

    def _warn(self) -> None:
        self._recorder.warn(
            "`torch.distributed.launch` of PyTorch 2 gives the script `--local-rank=0`, which it does not know: "
            "start it with `torchrun`, or with `--use-env`"
        )


def _known(parser: ArgumentParser) -> list[str]:
    """Spellings of the option that `parser` knows."""
    return [spelling for spelling in _SPELLINGS if spelling in parser._option_string_actions]
