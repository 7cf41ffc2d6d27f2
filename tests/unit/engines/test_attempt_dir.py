"""Files of an attempt: partial or foreign ones are none, and a tombstone is final."""

from __future__ import annotations

from pathlib import Path

from cotenant.core.ports import AttemptRef
from cotenant.engines.attempt_dir import AttemptDir


def test_partial_and_foreign_files_are_ignored_and_a_tombstone_is_final(tmp_path):
    attempt_dir = AttemptDir(tmp_path, AttemptRef(job_id=1, attempt=1))
    attempt_dir.path.mkdir(parents=True)
    (attempt_dir.path / "started.json").write_text("[]")
    for torn in ("{ half", "", "{}", '{"reason": "exited"}', "\0" * 100, "[]"):
        (attempt_dir.path / "result.json").write_text(torn)
        assert attempt_dir.exited("test") is None, torn
    assert attempt_dir.started("test") is None
    assert attempt_dir.runner() is None
    assert attempt_dir.tombstone()
    assert attempt_dir.tombstone()
    assert [path.name for path in Path(attempt_dir.path).iterdir() if path.name.startswith(".claim")] == []
