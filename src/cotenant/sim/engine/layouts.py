"""MIG repartitioning in a simulation: empty GPUs whose instances are replaced, at a cost in time.

The cluster has every instance that its GPUs in MIG mode can have; those that are in no layout now are down, and take no
power.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from cotenant.core.job import Job
from cotenant.core.mig import Layout, MigGpu, layout_of, layout_texts, possible_instances
from cotenant.scheduling.repartition import RepartitionPlanner
from cotenant.sim.cluster import Cluster, Slot, instance_profiles, instance_slot, numbered
from cotenant.sim.engine.event_queue import REPARTITIONED, EventQueue
from cotenant.sim.engine.observations import Observations
from cotenant.sim.engine.sim_gpu import SimGpu


class LayoutChange(NamedTuple):
    """A repartition: its begin and its end, the GPU's index among those in MIG mode, and the layouts."""

    begin_s: float
    end_s: float
    gpu: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    reason: str


class MigSlots(NamedTuple):
    """A GPU in MIG mode, and where its instances are among the slots, by text."""

    gpu: MigGpu
    slots: Mapping[str, int]


def with_all_instances(cluster: Cluster) -> tuple[Cluster, tuple[MigSlots, ...]]:
    """The cluster with every instance that its GPUs in MIG mode can have, and these GPUs with their present layouts.

    Raises:
        UsageError: a layout is not possible.
    """
    slots: list[Slot] = []
    found: list[MigSlots] = []
    by_parent: dict[str, list[Slot]] = {}
    for slot in cluster.slots:
        if slot.gpu.mig_parent is not None:
            by_parent.setdefault(slot.gpu.mig_parent, []).append(slot)
    for slot in cluster.slots:
        parent = slot.gpu.mig_parent
        if parent is None:
            slots.append(slot)
            continue
        own = by_parent.pop(parent, None)
        if own is None:
            continue  # its GPU has been added with its first instance
        gpu_type = slot.gpu_type.partition("/")[0]
        profiles = instance_profiles(gpu_type)
        layout = layout_of([one.gpu.mig_profile or "" for one in own], profiles)
        gpu = MigGpu(uuid=parent, index=len(found), profiles=profiles, layout=layout)
        places = {}
        for instance in possible_instances(profiles):
            places[instance.text] = len(slots)
            profile = instance.profile
            slots.append(instance_slot(gpu_type, profile.name, profile.memory_bytes, slot.server, parent=parent))
        found.append(MigSlots(gpu, places))
    return Cluster(cluster.text, numbered(slots)), tuple(found)


class LayoutChanger:
    """Handles REPARTITIONED events: repartitions of a simulation, by the planner that the daemon uses.

    Attributes:
        changes: all of them, by their begin.
        absent: how many instances of the cluster are in no layout now.
    """

    def __init__(
        self,
        planner: RepartitionPlanner,
        mig_gpus: Iterable[MigSlots],
        gpus: list[SimGpu],
        observations: Observations,
        events: EventQueue[Any],
    ) -> None:
        self._planner = planner
        self._states = {slots.gpu.uuid: slots for slots in mig_gpus}
        self._gpus = gpus
        self._observations = observations
        self._events = events
        self._not_before_s = dict.fromkeys(self._states, -math.inf)
        self.changes: list[LayoutChange] = []
        self.absent = 0
        for uuid, state in self._states.items():
            self._set(uuid, state.gpu.layout, 0.0)

    def look(self, waiting: Mapping[int, Job], at_s: float) -> None:
        """Begin the repartition that is worth most, if any is worth its cost."""
        excluded = {uuid for uuid, until_s in self._not_before_s.items() if at_s < until_s}
        if len(excluded) == len(self._states):
            return
        snapshots = [self._observations.snapshot(gpu, at_s) for gpu in self._gpus if gpu.exists]
        gpus = [state.gpu for state in self._states.values()]
        plan = self._planner.plan(gpus, snapshots, [*waiting.values()], excluded=excluded)
        if plan is None:
            return
        uuid, rule = plan.gpu.uuid, self._planner.rule
        end_s = at_s + rule.cost_s
        self._not_before_s[uuid] = end_s + rule.period_s
        before, after = layout_texts(plan.gpu.layout), layout_texts(plan.layout)
        self.changes.append(LayoutChange(at_s, end_s, plan.gpu.index, before, after, plan.reason))
        self._set(uuid, (), at_s)
        self._events.put(end_s, REPARTITIONED, (uuid, plan.layout))
        self._observations.look_again_at(end_s + rule.period_s)

    def done(self, subject: tuple[str, Layout], at_s: float) -> bool:
        """The new instances are there."""
        uuid, layout = subject
        self._set(uuid, layout, at_s)
        return True

    def _set(self, uuid: str, layout: Layout, at_s: float) -> None:
        state = self._states[uuid]
        present = {instance.text for instance in layout}
        for text, place in state.slots.items():
            gpu = self._gpus[place]
            if gpu.exists != (text in present):
                gpu.set_existing(at_s, exists=text in present)
                self.absent += 1 if text not in present else -1
                self._observations.gpu_changed(gpu)
        self._states[uuid] = state._replace(gpu=replace(state.gpu, layout=layout))
