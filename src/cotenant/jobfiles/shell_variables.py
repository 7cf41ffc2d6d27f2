"""The variables of a shell script while it is read: what becomes of `$A`, `${A:-b}`, `$(...)` and `$(( ... ))`.

Pure, and nothing is run. Outputs of commands that are not known make a value unknown; of a port or a host, any will do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from cotenant.jobfiles import shell_arithmetic, shell_arrays, shell_lines, shell_outputs, shell_parameters

_VARIABLE = re.compile(r"\$(?:(\w+|[@*#?$!-])|\{(#?)(\w+|[@*#])([^{}]*)\}|\(+[^()]*\)+)|`[^`]*`")
_CHOICE = re.compile(r"\$\{(\w+)(:?[-+=](?=[^{}]*\s)[^{}]*(?:\$\{\w+\}[^{}]*)?)\}")  # of several words
_QUOTED = re.compile(r"((?<=\s)'[^']*')")
_SLICE = re.compile(r":\s*(\d{1,4})")
_RANDOM = "12345"  # what `$RANDOM` is: a number of at most 32,767, of a port or a seed
_ARITHMETIC = "cotenant_arithmetic_"
_OUTPUT = "cotenant_output_"
_WORDS = "cotenant_words_"
_MAY_BE_EMPTY = re.compile(r"\w*(PATH|ARGS?|OPTS|OPTIONS|FLAGS)", re.IGNORECASE)
"""Names of variables that a script appends to or passes on, and that are often not set."""
_ANY_WILL_DO = (
    (re.compile(r"\w*PORT\w*", re.IGNORECASE), "29500"),
    (re.compile(r"\w*(ADDR|HOST)\w*", re.I), "localhost"),
)
"""Names of variables whose value no memory depends on."""
_LABEL = re.compile(r"(?=.*\$.*\$)[\w.-]*(?:\$(?:\w+|\{\w+\})[\w.-]*)+")
"""A word of settings and no path, by which a script names its run: `ETTh1_$model_$layers`."""
_MAX_ROUNDS = 3


class ShellVariables:
    """Names and values, arguments among them.

    Attributes:
        arguments: `$1`, `$2`, ...
        assigned: what the script has set.
        unknown: what was read since it was emptied last and is not known, in order.
    """

    def __init__(
        self, env: Mapping[str, str], arguments: Sequence[str], *, name: str, gpus: int, where: Callable[[], str]
    ) -> None:
        self.arguments = list(arguments)
        self.assigned: dict[str, str] = {}
        self.unknown: dict[str, None] = {}
        self._env = {"RANDOM": _RANDOM, shell_lines.QUOTED: "", **env}
        self._name = name
        self._gpus = gpus
        self._where = where
        self._arrays = shell_arrays.Arrays()
        self._arithmetic: list[str] = []  # expressions of the line
        self._outputs: list[str] = []  # commands in `$(...)` of the line
        self._choices: list[tuple[str, str]] = []  # names and defaults of several words of the line
        self._not_evaluated: set[str] = set()  # variables that hold the value of one that is not known

    def all_values(self) -> dict[str, str]:
        """Of every variable that has a value, as a script sees them that this one runs."""
        return {**self._env, **self.assigned}

    def assign(self, name: str, words: Sequence[str], *, is_computed: bool = False, is_appended: bool = False) -> None:
        """Set a variable.

        `is_computed`: it is unknown where something was that the words were made of. `is_appended`: they begin with its
        value, and it is unknown where that was.
        """
        if not is_appended:
            self._not_evaluated.discard(name)
        self.assigned[name] = " ".join(words)
        if not is_computed or not (self._arithmetic or self._outputs) or not self.unknown:
            return
        chosen = next((value for pattern, value in _ANY_WILL_DO if pattern.fullmatch(name)), None)
        if self._arithmetic or chosen is None:
            self._not_evaluated.add(name)
        else:
            self.assigned[name] = chosen

    def assign_array(self, line: str) -> bool:
        """Set the array that a line assigns; whether it assigns one."""
        return self._arrays.assign(line, self.known)

    def with_names(self, line: str) -> str:
        """A line with variables in the places of arrays, `$(( ... ))`, `$( ... )` and `${A:-two words}`.

        They are evaluated when the command is read in which they stand.
        """
        line = self._arrays.expanded(line, self.known)
        self._arithmetic, self._outputs, self._choices = [], [], []
        text = ""
        for part, is_expression in shell_arithmetic.parts(line):
            text += f"${{{_ARITHMETIC}{len(self._arithmetic)}}}" if is_expression else part
            self._arithmetic += [part] if is_expression else []
        return _CHOICE.sub(self._choice, self._without_outputs(text))

    def _choice(self, match: re.Match[str]) -> str:
        self._choices.append((match[1], match[2]))
        return f"${{{_WORDS}{len(self._choices) - 1}}}"

    def _without_outputs(self, line: str, depth: int = 0) -> str:
        text = ""
        for part, is_command in shell_outputs.parts(line):
            if is_command:
                inner = self._without_outputs(part, depth + 1) if depth < _MAX_ROUNDS else part
                text += f"${{{_OUTPUT}{len(self._outputs)}}}"
                self._outputs.append(inner)
            else:
                text += part
        return text

    def expanded(self, words: Sequence[str]) -> list[str]:
        """`words` with the values of variables; one that is a variable and nothing else is split, as without quotes.

        A variable that is not set is unknown: the user's shell may have it. In a label it is empty, as for the shell.
        """
        expanded: list[str] = []
        for word in words:
            if word in ("$@", "$*", "${@}"):
                expanded += self.arguments
            elif match := re.fullmatch(r"\$\{@:(\d{1,4})\}", word):
                expanded += self.arguments[max(int(match[1]) - 1, 0) :]
            elif re.fullmatch(r"\$(\w+|\{\w+\}|\{\w+:?[-+][^{}]*\})", word):
                expanded += self.texts([word])[0].split()
            elif word.endswith("$"):  # what is in the brackets behind it was read as a command of its own
                self.unknown["$(...)"] = None
                expanded += self.texts([word[:-1]])
            else:
                before = dict(self.unknown)
                expanded += self.texts([word])
                if _LABEL.fullmatch(word) and any(self.known(name) for name in re.findall(r"\w+", word)):
                    added = [written for written in self.unknown if written not in before]
                    self.unknown = before | dict.fromkeys(filter(self._is_evaluated_later, added))
        return expanded

    def _is_evaluated_later(self, written: str) -> bool:
        """Whether the script sets an unknown variable, to what only a run of it shows."""
        name = written.strip("${}")
        return name in self._not_evaluated or name in self.assigned or not name.isidentifier()

    def texts(self, words: Sequence[str]) -> list[str]:
        """`words` with the values of variables in them, also of those in a default: `${A:-${B}}`."""
        texts = []
        for word in words:
            text = _VARIABLE.sub(self._substitute, word)
            for _ in range(_MAX_ROUNDS):
                if "${" not in word or "${" not in text or (further := _VARIABLE.sub(self._substitute, text)) == text:
                    break
                text = further
            texts.append(text)
        return texts

    def _substitute(self, match: re.Match[str]) -> str:
        name, rest = match[1] or match[3], match[4] or ""
        if name is None:
            self.unknown[match[0]] = None
            return ""
        if name in ("@", "*"):
            start = _SLICE.fullmatch(rest)
            return " ".join(self.arguments[max(int(start[1]) - 1, 0) :] if start else self.arguments)
        if match[2]:  # `${#NAME}`
            return str(len(self._value(name, match[0])))
        if not rest or name.startswith((_ARITHMETIC, _OUTPUT, _WORDS)):
            return self._value(name, match[0])
        return self._changed(name, match[0], rest)

    def _changed(self, name: str, written: str, rest: str) -> str:
        """The value of `${name` + `rest` + `}`."""
        if name == "BASH_SOURCE":
            return self._value("0", written)
        found = shell_parameters.expanded(self._parameter(name), rest)
        if name in self._not_evaluated or found is None:
            self.unknown[written] = None
            return ""
        if "=" in rest[:2] and found:
            self.assign(name, [found])
        return _VARIABLE.sub(self._substitute, found) if found in rest else found

    def _parameter(self, name: str) -> str | None:
        """The value of a variable or of an argument; None: it is not set."""
        if name == "PWD":
            return self._where() or self.known(name)
        if not name.isdigit():
            return self.known(name)
        place = int(name[:4]) - 1
        if place < 0:
            return self._name or None
        return self.arguments[place] if place < len(self.arguments) else self.known(name)

    def known(self, name: str) -> str | None:
        return self.assigned.get(name, self._env.get(name))

    def _printed(self, place: int) -> str | None:
        """What the command in a `$( ... )` of the line prints; None: not known."""
        before, self.unknown = self.unknown, {}
        parts = _QUOTED.split(self._outputs[place])  # programs of awk and sed have dollar signs of their own
        text = "".join(part if at % 2 else self.texts([part])[0] for at, part in enumerate(parts))
        is_known, self.unknown = not self.unknown, before
        return shell_outputs.printed(text, self._where(), self._gpus) if is_known else None

    def _value(self, name: str, written: str) -> str:
        if name == "#":
            return str(len(self.arguments))
        key = name.removeprefix(_OUTPUT)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._outputs):
            output = self._printed(int(key[:4]))
            if output is None:
                self.unknown["$(...)"] = None
            return output or ""
        if name == "BASH_SOURCE":
            name = "0"
        key = name.removeprefix(_ARITHMETIC)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._arithmetic):
            expression = self._arithmetic[int(key[:4])]
            number = shell_arithmetic.evaluate(expression, self.known)
            if number is None:
                self.unknown[f"$(({expression}))"] = None
            return "" if number is None else str(number)
        key = name.removeprefix(_WORDS)
        if key != name and key.isdecimal() and int(key[:4]) < len(self._choices):
            return self._changed(self._choices[int(key[:4])][0], written, self._choices[int(key[:4])][1])
        found = self._parameter(name)
        if name in self._not_evaluated or (found is None and not _MAY_BE_EMPTY.fullmatch(name)):
            self.unknown[written] = None
        return found or ""
