"""When the output of jobs is measured for the quota of their users."""

from __future__ import annotations

from cotenant.core.units import MiB
from cotenant.daemon.pruning import MIN_REFRESH_S, OutputStore


def test_of_many_submissions_at_once_one_measures(tmp_path):
    now_s = [100.0]
    store = OutputStore(tmp_path, now=lambda: now_s[0])
    assert [store.take_measure() for _ in range(3)] == [True, False, False]
    (tmp_path / "attempts" / "7" / "1").mkdir(parents=True)
    (tmp_path / "attempts" / "7" / "1" / "stdout").write_bytes(b"x" * MiB)
    store.measure({7: 1000})
    assert store.budget.used_bytes(1000) == MiB
    assert not store.take_measure()
    now_s[0] += MIN_REFRESH_S
    assert store.take_measure()
