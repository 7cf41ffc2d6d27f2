"""Frozen dataclasses made in bulk are those that are made one by one."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from cotenant.core.fast_constructor import fast_constructor, fast_replace
from cotenant.core.gpu import Resident
from cotenant.core.placement import Placement


def test_a_fast_constructed_object_equals_a_normal_one():
    made = fast_constructor(Placement)(7, ("GPU-0",), "mps", 5)
    assert made == Placement(job_id=7, gpu_uuids=("GPU-0",), sharing="mps", promised_bytes=5)
    assert type(made) is Placement
    assert hash(made) == hash(Placement(job_id=7, gpu_uuids=("GPU-0",), sharing="mps", promised_bytes=5))


def test_values_are_assigned_in_field_order():
    made = fast_constructor(Resident)(1, 2, 3, 4, "mps", 5.0, 6.0, 1.5, 2, "train", 0.5)
    assert (made.attempt, made.observed_bytes, made.first_active_at_s, made.gpus, made.smact) == (2, 4, 6.0, 2, 0.5)


def test_a_frozen_class_stays_frozen():
    made = fast_constructor(Placement)(7, ("GPU-0",), "mps", 5)
    with pytest.raises(FrozenInstanceError):
        made.job_id = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    value: int

    def __post_init__(self) -> None:
        assert self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    values: list[int] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class WithoutSlots:
    value: int


def test_a_default_factory_makes_a_value_for_each_object():
    make = fast_constructor(Listed)
    first, second = make(), make()
    assert first == second == Listed()
    assert first.values is not second.values
    assert make([3]) == Listed(values=[3])


@pytest.mark.parametrize("kind", [Checked, WithoutSlots])
def test_a_class_that_does_more_than_assign_values_is_refused(kind):
    with pytest.raises(TypeError, match="does more in its construction"):
        fast_constructor(kind)


def test_a_changed_copy_equals_that_of_dataclasses():
    placement = Placement(job_id=7, gpu_uuids=("GPU-0",), sharing="mps", promised_bytes=5)
    changed = fast_replace(placement, sharing="exclusive", promised_bytes=6)
    assert changed == replace(placement, sharing="exclusive", promised_bytes=6)
    assert (type(changed), placement.promised_bytes) == (Placement, 5)
    with pytest.raises(FrozenInstanceError):
        changed.job_id = 8


def test_a_change_of_an_unknown_field_is_refused():
    with pytest.raises(AttributeError, match="bytes"):
        fast_replace(Placement(job_id=7, gpu_uuids=("GPU-0",), sharing="mps", promised_bytes=5), bytes=6)


def test_a_class_that_checks_its_values_is_not_replaced_fast():
    with pytest.raises(TypeError, match="Checked"):
        fast_replace(Checked(value=1), value=0)
