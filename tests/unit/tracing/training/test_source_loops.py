"""What a script runs behind a block of a `try`."""

from __future__ import annotations

import ast

from cotenant.tracing.training.source_loops import end_of_try


def test_behind_the_block_of_a_try_come_else_and_finally():
    (statement,) = ast.parse("try:\n    a\nexcept E:\n    b\nelse:\n    c\nfinally:\n    d\n").body
    behind = {
        "body": end_of_try(statement, statement.body),
        "handler": end_of_try(statement, statement.handlers[0].body),
        "else": end_of_try(statement, statement.orelse),
        "finally": end_of_try(statement, statement.finalbody),
    }
    found = {name: [ast.unparse(part) for part in parts] for name, parts in behind.items()}
    assert found == {"body": ["c", "d"], "handler": ["d"], "else": ["d"], "finally": []}
    assert end_of_try(ast.parse("while x:\n    y\n").body[0], None) == []
