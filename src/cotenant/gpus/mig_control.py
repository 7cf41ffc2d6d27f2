"""Replaces the MIG instances of an empty GPU, through any driver; unproven on hardware.

A repartition checks the real layout and the processes on the GPU first, removes what the new layout does not have, and
creates what is missing. If the driver refuses in the middle, the instances that were removed are created again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Protocol

from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.mig import Layout, MigGpu, MigInstance, layout_texts, parse_layout

LEAVING_S = 1.0
"""The driver may list a process a moment longer than it lives."""
MAX_PIDS = 5
"""So many processes are named in a message."""


class MigControl(Protocol):
    """Access to the MIG layouts of this machine; not used from two threads at once."""

    def gpus(self) -> tuple[MigGpu, ...]:
        """The GPUs in MIG mode, as they are now.

        Raises:
            BackendError: they cannot be read, or not by this user.
        """
        ...

    def process_ids(self, gpu_uuid: str) -> Collection[int]:
        """The processes on all instances of a GPU, and on the GPU itself.

        Raises:
            BackendError: they cannot be read.
        """
        ...

    def destroy(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Destroy an instance that no process uses.

        Raises:
            BackendError: there is none, or the driver refuses.
        """
        ...

    def create(self, gpu_uuid: str, instance: MigInstance) -> None:
        """Create an instance that jobs can use.

        Raises:
            BackendError: the driver refuses.
        """
        ...


class RepartitionResult(NamedTuple):
    """The layout that a GPU has now, and why it is not what was wanted; None if it is."""

    layout: tuple[str, ...]
    error: str | None


def repartition(
    control: MigControl, gpu_uuid: str, before: Sequence[str], after: Sequence[str], *, is_resumed: bool = False
) -> RepartitionResult:
    """Change the layout of a GPU from `before` to `after`, in the texts of `MigInstance`.

    `is_resumed`: an earlier process may have ended in the middle, so the GPU may have a part of either layout.
    """
    try:
        gpu = _find(control, gpu_uuid)
    except CotenantError as error:
        return RepartitionResult(tuple(before), error.message)
    found = layout_texts(gpu.layout)
    try:
        wanted = parse_layout(after, gpu.profiles)
        _check(control, gpu, before, after, is_resumed=is_resumed)
        _change(control, gpu, wanted)
        now = layout_texts(_find(control, gpu_uuid).layout)
    except CotenantError as error:
        return RepartitionResult(_layout_now(control, gpu_uuid, found), error.message)
    if set(now) != set(after):
        return RepartitionResult(now, f"the driver shows {_words(now)} instead of {_words(after)}")
    return RepartitionResult(now, None)


def _find(control: MigControl, gpu_uuid: str) -> MigGpu:
    for gpu in control.gpus():
        if gpu.uuid == gpu_uuid:
            return gpu
    raise BackendError(f"GPU {gpu_uuid} is not in MIG mode, or gone")


def _check(control: MigControl, gpu: MigGpu, before: Sequence[str], after: Sequence[str], *, is_resumed: bool) -> None:
    """Raise BackendError unless the GPU is empty and has a layout that we know."""
    found = set(layout_texts((*gpu.layout, *gpu.incomplete)))
    known = found == set(before) or found == set(after)
    if is_resumed:
        known = known or found <= set(before) or found <= set(after)
    if not known:
        wanted = _words(before)
        raise BackendError(f"its layout was changed by others: found {_words(sorted(found))}, wanted {wanted}")
    if gpu.foreign:
        raise BackendError(f"its layout was changed by others: {gpu.foreign}")
    if gpu.incomplete and not is_resumed:
        incomplete = _words(layout_texts(gpu.incomplete))
        raise BackendError(f"its layout was changed by others: {incomplete} without compute instance")
    pids = sorted(control.process_ids(gpu.uuid))
    give_up_s = time.monotonic() + LEAVING_S
    while pids and time.monotonic() < give_up_s:
        time.sleep(LEAVING_S / 20)
        pids = sorted(control.process_ids(gpu.uuid))
    if pids:
        names = ", ".join(map(str, pids[:MAX_PIDS])) + (", ..." if len(pids) > MAX_PIDS else "")
        raise BackendError(f"processes use the GPU: {names}")


def _change(control: MigControl, gpu: MigGpu, wanted: Layout) -> None:
    """Destroy and create instances; where the driver refuses, restore those that were there."""
    removed: list[MigInstance] = []
    created: list[MigInstance] = []
    try:
        for instance in gpu.incomplete:
            control.destroy(gpu.uuid, instance)
        for instance in _without(gpu.layout, wanted):
            control.destroy(gpu.uuid, instance)
            removed.append(instance)
        for instance in _without(wanted, gpu.layout):
            control.create(gpu.uuid, instance)
            created.append(instance)
    except CotenantError as error:
        failures = _restore(control, gpu.uuid, removed, created)
        raise BackendError(f"{error.message}{failures}") from error


def _restore(control: MigControl, gpu_uuid: str, removed: Iterable[MigInstance], created: Iterable[MigInstance]) -> str:
    """Undo what was done; returns what could not be undone, as the end of a sentence."""
    failures = []
    for undo, instances in ((control.destroy, created), (control.create, removed)):
        for instance in instances:
            try:
                undo(gpu_uuid, instance)
            except CotenantError as error:
                failures.append(error.message)
    return "".join(f"; not restored: {failure}" for failure in failures)


def _without(layout: Layout, others: Layout) -> list[MigInstance]:
    texts = set(layout_texts(others))
    return [instance for instance in layout if instance.text not in texts]


def _layout_now(control: MigControl, gpu_uuid: str, found: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return layout_texts(_find(control, gpu_uuid).layout)
    except CotenantError:
        return found


def _words(texts: Iterable[str]) -> str:
    return ", ".join(texts) or "no instance"
