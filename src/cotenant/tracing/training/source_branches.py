"""Branches of functions of a script, by the conditions that decide for them.

A module of its own: `later_branches` enters them; this finds them in the source.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType

from cotenant.tracing import script_location
from cotenant.tracing.training import source_bodies
from cotenant.tracing.training.named_conditions import NamedConditions
from cotenant.tracing.training.source_bodies import inner_blocks

ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_EXITS = frozenset({"exit", "quit", "_exit", "abort"})
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Branch:
    """Statements that run if `test` is true.

    Attributes:
        improves: they note that a number is the best so far, `best = loss`: it is in most trainings, from time to time.
        has_own_lines: they begin in a line behind the condition, at which the function can go on.
    """

    test: ast.expr
    body: list[ast.stmt]
    improves: bool = False
    has_own_lines: bool = True

    @property
    def lines(self) -> range:
        return range(self.body[0].lineno, (self.body[-1].end_lineno or self.body[-1].lineno) + 1)


@functools.cache
def branches_of(code: CodeType) -> Mapping[int, list[Branch]]:
    """The branches of a function of the script, by the lines of their conditions."""
    if not script_location.is_user_file(code.co_filename):
        return {}
    function = source_bodies.function_node(code)
    named, found = NamedConditions.of(function), dict[int, list[Branch]]()
    for block, index in _places(function.body):
        statement = block[index]
        branches: Iterable[Branch] = ()
        if isinstance(statement, ast.If):
            branches = _of_condition(statement, block[index + 1 :], named)
        if isinstance(statement, ast.Match):
            branches = _of_cases(statement, named)
        if isinstance(statement, ast.While):  # `while seen >= next_one:`
            test = named.in_place(statement.test)
            branches = [Branch(test, statement.body, has_own_lines=statement.body[0].lineno > statement.lineno)]
        if usable := [branch for branch in branches if not _ends_script(branch.body)]:
            found[statement.lineno] = usable
    for test, value in _conditional_values(function):
        body: list[ast.stmt] = [ast.copy_location(ast.Expr(value), value)]
        found.setdefault(value.lineno, []).append(Branch(named.in_place(test), body, has_own_lines=False))
    return found


def names_in(node: ast.expr) -> Iterator[str]:
    """Source texts of the names, attributes and entries in an expression."""
    numbers = (ast.Name, ast.Attribute, ast.Subscript)
    return (ast.unparse(part) for part in ast.walk(node) if isinstance(part, numbers))


def _of_condition(
    condition: ast.If, behind: list[ast.stmt], named: NamedConditions, given: tuple[ast.expr, ...] = ()
) -> Iterator[Branch]:
    """Its branches, and those of its `elif`s, which begin from its line; `given`: what is true where it is one."""
    test = named.in_place(condition.test)
    ends = condition.test.end_lineno or 0
    yield Branch(
        _all_of(*given, test),
        condition.body,
        _improves(condition.test, condition.body),
        condition.body[0].lineno > ends,
    )
    not_so = (*given, ast.UnaryOp(op=ast.Not(), operand=test))
    if len(condition.orelse) == 1 and isinstance(condition.orelse[0], ast.If):
        yield from _of_condition(condition.orelse[0], [], named, not_so)
        return
    otherwise = condition.orelse
    if isinstance(condition.body[-1], (ast.Continue, ast.Return)) and not otherwise:
        otherwise = behind
    if otherwise:
        yield Branch(_all_of(*not_so), otherwise, has_own_lines=otherwise[0].lineno > ends)


def _all_of(*tests: ast.expr) -> ast.expr:
    return ast.BoolOp(op=ast.And(), values=list(tests)) if len(tests) > 1 else tests[0]


def _of_cases(statement: ast.Match, named: NamedConditions) -> Iterator[Branch]:
    """What `match step % 500: case 0: …` decides for; a pattern that is more than values, or a name, is not known."""
    subject = named.in_place(statement.subject)
    for case in statement.cases:
        test = _matches(case.pattern, subject)
        if case.guard is not None:
            guard = NamedConditions({_captured(case.pattern): subject}).in_place(case.guard)
            test = guard if test is None else _all_of(test, guard)
        if test is not None:
            yield Branch(test, case.body, has_own_lines=case.body[0].lineno > case.pattern.lineno)


def _matches(pattern: ast.pattern, subject: ast.expr) -> ast.expr | None:
    """The comparison that a pattern of values stands for; None of any other pattern."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(left=subject, ops=[ast.Eq()], comparators=[pattern.value])
    if isinstance(pattern, ast.MatchOr):
        alternatives = [_matches(one, subject) for one in pattern.patterns]
        known = [one for one in alternatives if one is not None]
        return ast.BoolOp(op=ast.Or(), values=known) if len(known) == len(alternatives) else None
    return None


def _captured(pattern: ast.pattern) -> str:
    """The name that a pattern gives to any subject; empty of others."""
    return (pattern.name or "") if isinstance(pattern, ast.MatchAs) and pattern.pattern is None else ""


def _conditional_values(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Calls in expressions that decide whether they are made: `evaluate() if due else None`, `due and evaluate()`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*_DEFINITIONS, ast.Lambda)):  # it has other names, and runs at another time
            continue
        choices: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(child, ast.IfExp):
            choices = [(child.test, child.body), (ast.UnaryOp(op=ast.Not(), operand=child.test), child.orelse)]
        elif (
            isinstance(child, ast.Expr) and isinstance(child.value, ast.BoolOp) and isinstance(child.value.op, ast.And)
        ):
            choices = [(child.value.values[0], child.value.values[-1])]
        yield from (choice for choice in choices if isinstance(choice[1], ast.Call))
        yield from _conditional_values(child)


def _improves(test: ast.expr, body: list[ast.stmt]) -> bool:
    """Whether a branch sets one side of its comparison to the other one: `if loss < best: best = loss`."""
    compared = [node for node in ast.walk(test) if isinstance(node, ast.Compare) and isinstance(node.ops[0], ORDERS)]
    sides = [(set(names_in(node.left)), set(names_in(node.comparators[0]))) for node in compared]
    sides += [(right, left) for left, right in sides]
    assigned = [
        (ast.unparse(part.targets[0]), ast.unparse(part.value)) for part in body if isinstance(part, ast.Assign)
    ]
    return any(best in left and new in right for left, right in sides for best, new in assigned)


def _places(block: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], int]]:
    """The places of all statements in a block, also of those in loops and other statements of it."""
    for index, statement in enumerate(block):
        yield block, index
        if not isinstance(statement, _DEFINITIONS):
            for inner in inner_blocks(statement):
                yield from _places(inner)


def _ends_script(body: list[ast.stmt]) -> bool:
    """Whether it raises an error or exits, in any case."""
    for statement in body:
        value = statement.value if isinstance(statement, ast.Expr) else None
        is_exit = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _EXITS
        if is_exit or isinstance(statement, (ast.Raise, ast.Assert)):
            return True
    return False
