"""Statements of functions and notebooks, found from what runs."""

from __future__ import annotations

import ast
import linecache

import pytest

from cotenant.tracing.training import source_bodies

SOURCE = '''
import functools
first = 1
def plain(x):
    return x
class Outer:
    @property
    @functools.cache
    def decorated(self):
        text = """
less indented
"""
        def nested():
            if self:
                return text
        return nested
    async def later(self): return [one for one in self]
kept = lambda x: x + 1
'''


@pytest.fixture
def run():
    """Code objects of a source by their names, the module's included."""

    def compiled(source, name="train.py"):
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        found, waiting = {}, [compile(source, name, "exec")]
        while waiting:
            code = waiting.pop()
            found[code.co_name] = code
            waiting += [constant for constant in code.co_consts if hasattr(constant, "co_code")]
        return found

    yield compiled
    source_bodies.code_body.cache_clear()
    source_bodies.file_body.cache_clear()
    linecache.clearcache()


def test_the_statements_of_functions_keep_their_lines(run):
    codes, tree = run(SOURCE), ast.parse(SOURCE)
    functions = {
        node.name: node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    assert functions.keys() == {"plain", "decorated", "nested", "later"}
    for name, function in functions.items():
        found = source_bodies.code_body(codes[name])
        assert [ast.dump(part, include_attributes=True) for part in found] == [
            ast.dump(part, include_attributes=True) for part in function.body
        ]
    assert len(source_bodies.code_body(codes["<module>"])) == len(tree.body)


@pytest.mark.parametrize("name", ["Outer", "<listcomp>"])
def test_what_is_no_function_has_no_statements(run, name):
    code = run(SOURCE).get(name)
    assert code is None or source_bodies.code_body(code) == []


@pytest.mark.parametrize("text", ["", "def plain(x):\n", "    def plain(x):\n  (\n", "x = 1\n"])
def test_a_source_that_has_changed_has_no_statements(run, text):
    code = run("def plain(x):\n    return x\n")["plain"]
    linecache.cache["train.py"] = (len(text), None, text.splitlines(keepends=True), "train.py")
    assert source_bodies.code_body(code) == []


def test_the_cells_behind_are_those_of_the_cell_itself(run):
    source_bodies.set_later_cells("train.py", ["cell 2", "cell 3"])
    codes = run(SOURCE)
    assert source_bodies.later_cells(codes["<module>"]) == ["cell 2", "cell 3"]
    assert source_bodies.later_cells(codes["plain"]) == []
    assert source_bodies.later_cells(run("x = 1", "other.py")["<module>"]) == []


@pytest.mark.parametrize(("source", "body"), [(SOURCE, ["x + 1"]), ("kept = [lambda x: 1, lambda x: 2]\n", [])])
def test_a_lambda_has_its_expression_unless_its_line_has_several(run, source, body):
    assert list(map(ast.unparse, source_bodies.code_body(run(source)["<lambda>"]))) == body


def test_blocks_of_a_statement_are_those_of_its_handlers_and_cases_too():
    source = "try: a\nexcept E: b\nelse: c\nfinally: d\nmatch x:\n    case 1: e\n    case _: f"
    blocks = [block for statement in ast.parse(source).body for block in source_bodies.inner_blocks(statement)]
    assert [ast.unparse(block[0]) for block in blocks if block] == ["a", "c", "d", "b", "e", "f"]
