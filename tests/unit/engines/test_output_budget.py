"""How large the output files of attempts may get: shares of what is left to their user."""

from __future__ import annotations

import pytest

from cotenant.core.ports import AttemptRef
from cotenant.core.units import MiB
from cotenant.engines.output_budget import MIN_FILE_BYTES, OutputBudget

ANN, BEN = 1001, 1002


def refs(count):
    return [AttemptRef(job_id=number, attempt=1) for number in range(1, count + 1)]


@pytest.mark.parametrize("limit", [None, 7 * MiB])
def test_without_a_limit_for_users_every_file_gets_its_own_limit(limit):
    budget = OutputBudget(limit, None)
    assert [budget.grant(ref, ANN) for ref in refs(100)] == [limit] * 100


def test_all_attempts_of_a_user_at_once_stay_within_the_limit_but_for_the_minimum():
    budget = OutputBudget(1024 * MiB, 1000 * MiB)
    grants = [budget.grant(ref, ANN) for ref in refs(500)]
    above_minimum = [grant for grant in grants if grant > MIN_FILE_BYTES]
    assert 2 * sum(above_minimum) < 1000 * MiB
    assert grants[0] == 1000 * MiB // 16
    assert grants == sorted(grants, reverse=True)
    assert grants[-1] == MIN_FILE_BYTES
    assert budget.grant(AttemptRef(job_id=1000, attempt=1), BEN) == grants[0], "another user has all of it"


def test_what_an_ended_attempt_wrote_counts_and_the_rest_is_free_again(tmp_path):
    budget = OutputBudget(None, 160 * MiB)
    folder = tmp_path / "1" / "1"
    folder.mkdir(parents=True)
    (folder / "stdout.log").write_bytes(b"x" * (16 * MiB))
    first, second, third, _ = refs(4)
    assert budget.grant(first, ANN) == 10 * MiB
    budget.release(first, folder)
    assert budget.used_bytes(ANN) == 16 * MiB
    assert budget.grant(second, ANN) == (160 - 16) * MiB // 16
    budget.release(second, tmp_path / "2" / "1")  # removed
    assert budget.grant(third, ANN) == (160 - 16) * MiB // 16
    budget.release(AttemptRef(job_id=99, attempt=1), folder)  # of an earlier daemon
    assert budget.used_bytes(ANN) == 16 * MiB


def test_a_file_that_was_measured_while_it_grew_counts_once(tmp_path):
    budget = OutputBudget(None, 160 * MiB)
    folder = tmp_path / "1" / "1"
    folder.mkdir(parents=True)
    first, _ = refs(2)
    budget.grant(first, ANN)
    (folder / "stdout.log").write_bytes(b"x" * MiB)
    budget.set_sizes({1: MiB, 2: 4 * MiB}, {1: ANN, 2: BEN})
    (folder / "stdout.log").write_bytes(b"x" * (3 * MiB))
    budget.release(first, folder)
    assert (budget.used_bytes(ANN), budget.used_bytes(BEN)) == (3 * MiB, 4 * MiB)
    budget.grant(AttemptRef(job_id=1, attempt=2), ANN)
    again = tmp_path / "1" / "2"
    again.mkdir()
    (again / "stderr.log").write_bytes(b"x" * MiB)
    budget.release(AttemptRef(job_id=1, attempt=2), again)
    assert budget.used_bytes(ANN) == 4 * MiB, "the second attempt of the job adds its own"


def test_pruning_gives_room_back():
    budget = OutputBudget(None, 160 * MiB)
    budget.set_sizes({7: 200 * MiB}, {7: ANN})
    assert budget.grant(refs(1)[0], ANN) == MIN_FILE_BYTES
    budget.forget(7, ANN)
    assert budget.grant(refs(2)[1], ANN) == (160 * MiB - 2 * MIN_FILE_BYTES) // 16
