"""The loops and functions that run now, and which counters of the loops are known in what runs inside them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from cotenant.tracing import script_location
from cotenant.tracing.training import later_training, source_bodies
from cotenant.tracing.training.loop_counters import NO_COUNTERS, Counters
from cotenant.tracing.training.source_loops import loops_around
from cotenant.tracing.training.source_values import number_in


@dataclass(frozen=True, slots=True)
class Level:
    """A loop, or the body of a function, that runs now."""

    frame: FrameType
    names: Mapping[str, Any]
    node: ast.AST
    counters: Counters
    is_function: bool = False

    def counters_of(self, outer: Level, inner: Sequence[Level]) -> Counters:
        """Those of an outer loop that are known here: by the same name or attribute, and with the same value.

        What the loops between, `inner`, count is not known in a later round of the outer one. What a function counts
        that the innermost loop calls, as `self.step += 1`, that loop counts.
        """
        is_innermost = outer is next((level for level in inner if not level.is_function), None)
        own = self._counted_by_calls(inner) if is_innermost else {}
        if self is outer:
            return replace(self.counters, strides={**own, **self.counters.strides}) if own else self.counters
        code = self.frame.f_code
        counted = {text for level in inner if level is not outer for text in level.counters.strides}
        is_local = set(code.co_varnames[code.co_argcount + code.co_kwonlyargcount :]).__contains__
        known = {
            text: stride
            for text, stride in outer.counters.strides.items()
            if text not in counted
            and (self.frame is outer.frame or not is_local(text))
            and number_in(text, self.names) == number_in(text, outer.names)
        }
        assigned, changed_at = outer.counters.assigned, outer.counters.changed_at
        if self.is_function:
            changed_at = {text: line for text, line in self.counters.changed_at.items() if text in own}
        if self.frame is not outer.frame:  # another call may have other arguments
            assigned |= set(code.co_varnames)
        changing = outer.counters.changing | self.counters.changing  # an argument often has the name that the loop sets
        return replace(
            outer.counters, strides={**known, **own}, not_known=frozenset(counted - own.keys()), assigned=assigned,
            changing=changing, changed_at=changed_at,
        )  # fmt: skip

    def _counted_by_calls(self, inner: Sequence[Level]) -> dict[str, int]:
        """What functions count that the innermost loop calls: attributes with the same value here."""
        return {
            text: stride
            for level in inner
            if level.is_function
            for text, stride in level.counters.strides.items()
            if "." in text and number_in(text, self.names) == number_in(text, level.names)
        }


def levels(
    watched: FrameType | None = None, names_there: Mapping[str, Any] | None = None
) -> Iterator[tuple[Level, list[Level], bool]]:
    """Each loop of the script that goes on now, from the innermost outwards; what runs inside it; if it is innermost.

    What runs inside it begins with the innermost, and ends with the loop itself. `watched`: a frame whose trace
    function asks, with its `names_there`; its locals are Python's then.
    """
    innermost = True
    inside: list[Level] = []
    for frame in list(later_training.script_frames()):
        body = source_bodies.function_body(frame)
        loops = list(loops_around(body, frame.f_lineno))
        names = names_there if frame is watched and names_there is not None else script_location.visible_names(frame)
        for depth, loop in enumerate(reversed(loops)):
            level = Level(frame, names, loop, Counters.of(loop, names))
            inside.append(level)
            yield level, inside, innermost and not depth
        function = source_bodies.function_node(frame.f_code)
        is_called = innermost and not loops  # by the innermost loop, in each of its rounds
        counters = Counters.of(function, names) if is_called else NO_COUNTERS
        inside.append(Level(frame, names, function, counters, is_function=True))
        innermost = innermost and not loops
