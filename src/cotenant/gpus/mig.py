"""MIG: which layouts a card allows, which of them serves a queue best, and making one.

A layout is a set of instances at places that do not overlap. Places are counted in memory slices: 8 on the cards with
7 compute slices, 4 on those with 4. An instance of a kind may start only at certain places.

Source: NVIDIA MIG user guide, "Supported MIG profiles"; `nvidia-smi mig -lgipp`.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from cotenant.core.errors import BackendError, UnknownName, UsageError

TIMEOUT_S = 60.0
MIN_ACTIVITY = 0.05
UNKNOWN_ACTIVITY = 0.5
"""For a job of which nobody knows how busy it keeps a whole card."""

_NAME = re.compile(r"^(\d)g\.(\d+)gb$")
# By compute slices and memory slices of an instance: where it may start. Cards of 7 compute slices, then of 4.
_STARTS: dict[int, dict[tuple[int, int], tuple[int, ...]]] = {
    7: {
        (1, 1): (0, 1, 2, 3, 4, 5, 6),
        (1, 2): (0, 2, 4, 6),
        (2, 2): (0, 2, 4),
        (3, 4): (0, 4),
        (4, 4): (0,),
        (7, 8): (0,),
    },
    4: {(1, 1): (0, 1, 2, 3), (2, 2): (0, 2), (4, 4): (0,)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceProfile:
    """A kind of instance of one card: its name, what it holds, and its part of the whole card's compute slices."""

    name: str
    memory_bytes: int
    compute: int
    memory_slices: int
    of: int

    @property
    def fraction(self) -> float:
        """Its share of the compute slices, 0..1."""
        return self.compute / self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class MigInstance:
    """A slice at a place. The place is told to the driver, which would not always leave room for those that follow."""

    kind: InstanceProfile
    start: int


Layout = tuple[MigInstance, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDemand:
    """A waiting job: the bytes it must find free, and the SM activity it shows on a whole card (None: not known)."""

    job_id: int
    bytes: int
    smact: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigPlan:
    """A layout and who would run where.

    Attributes:
        placed: job and index of its instance in `layout`.
        speed: sum of the placed jobs' predicted speeds, each 0..1 of a whole card of its own.
    """

    layout: Layout
    placed: tuple[tuple[int, int], ...]
    speed: float


def parse_profiles(profiles: Sequence[tuple[str, int]]) -> tuple[InstanceProfile, ...]:
    """The kinds of instances of a card, from names such as `3g.20gb` and bytes.

    Kinds that are not known (media extensions, graphics) are left out.

    Raises:
        UsageError: the card has no MIG.
    """
    parsed = [(name, size_bytes, _NAME.match(name)) for name, size_bytes in profiles]
    found = [(name, size_bytes, int(m[1]), int(m[2])) for name, size_bytes, m in parsed if m is not None]
    if not found:
        raise UsageError("this GPU has no MIG profiles", hint="MIG is on A30, A100, H100, H200 and later of their kind")
    of = max(compute for _, _, compute, _ in found)
    unit_gb = min(gigabytes for _, _, compute, gigabytes in found if compute == 1)
    starts = _STARTS.get(of, {})
    slices = []
    for name, size_bytes, compute, gigabytes in found:
        # Of the small instances only the memory tells the kinds apart: 1g.5gb and 1g.10gb.
        memory = min(2, max(1, round(gigabytes / unit_gb))) if compute == 1 else {2: 2, 3: 4, 4: 4, 7: 8}[compute]
        if (compute, memory) in starts:
            slices.append(
                InstanceProfile(name=name, memory_bytes=size_bytes, compute=compute, memory_slices=memory, of=of)
            )
    return tuple(sorted(slices, key=lambda each: (-each.compute, -each.memory_bytes)))


def layouts(slices: Sequence[InstanceProfile]) -> tuple[Layout, ...]:
    """All layouts to which nothing can be added, largest instances first; of those of the same kinds only one."""
    if not slices:
        return ()
    found: dict[tuple[str, ...], Layout] = {}
    for layout in _fillings(tuple(slices), slices[0].of, place=0):
        ordered = tuple(sorted(layout, key=lambda each: (-each.kind.compute, -each.kind.memory_bytes, each.start)))
        found.setdefault(profile_names(ordered), ordered)
    return tuple(each for names, each in found.items() if not _grows(names, found))


def profile_names(layout: Layout) -> tuple[str, ...]:
    """The kinds of the instances."""
    return tuple(each.kind.name for each in layout)


def _fillings(slices: tuple[InstanceProfile, ...], of: int, *, place: int) -> Iterator[Layout]:
    """Instances from `place` on, that place left empty among others."""
    width = 8 if of == 7 else of
    if place >= width:
        yield ()
        return
    for kind in slices:
        if place in _STARTS[of][kind.compute, kind.memory_slices]:
            for rest in _fillings(slices, of, place=place + kind.memory_slices):
                if kind.compute + sum(other.kind.compute for other in rest) <= of:
                    yield (MigInstance(kind=kind, start=place), *rest)
    yield from _fillings(slices, of, place=place + 1)


def _grows(names: tuple[str, ...], found: Collection[tuple[str, ...]]) -> bool:
    """Whether another layout has the same instances and more."""
    return any(len(other) > len(names) and not Counter(names) - Counter(other) for other in found)


def predicted_speed(need: MigDemand, kind: InstanceProfile) -> float:
    """Speed on such an instance as a part of that on the whole card: its share of the SMs over what the job keeps busy.

    On the workloads that MISO measured on slices of an A100 (its heaviest and its lightest) this errs by .01 to .14.
    """
    activity = UNKNOWN_ACTIVITY if need.smact is None else need.smact
    return min(1.0, kind.fraction / max(MIN_ACTIVITY, activity))


def plan(queue: Sequence[MigDemand], slices: Sequence[InstanceProfile]) -> MigPlan:
    """The layout on which the head of `queue` runs at the highest summed speed; jobs keep their order.

    Each job, in order, gets the instance that makes it fastest of those it fits into; jobs that find none are passed
    over. Among equals the layout of fewer instances is taken, which leaves larger ones for what comes.

    Raises:
        UsageError: no layout is known for such a card.
    """
    plans = [_assign(queue, layout) for layout in layouts(slices)]
    if not plans:
        raise UsageError("no MIG layout is known for this GPU")
    return max(plans, key=lambda each: (round(each.speed, 9), -len(each.layout)))


def _assign(queue: Sequence[MigDemand], layout: Layout) -> MigPlan:
    free = set(range(len(layout)))
    placed = []
    speed = 0.0
    for need in queue:
        fits = [place for place in sorted(free) if layout[place].kind.memory_bytes >= need.bytes]
        if not fits:
            continue

        def worth(place: int, need: MigDemand = need) -> tuple[float, int, int]:
            """Fastest; of those that are as fast the smallest, for the larger ones are for others."""
            kind = layout[place].kind
            return predicted_speed(need, kind), -kind.compute, -kind.memory_bytes

        chosen = max(fits, key=worth)
        free.remove(chosen)
        placed.append((need.job_id, chosen))
        speed += worth(chosen)[0]
    return MigPlan(layout=layout, placed=tuple(placed), speed=speed)


def layout_of(names: Sequence[str], slices: Sequence[InstanceProfile]) -> Layout:
    """Places for these instances.

    Raises:
        UsageError: a kind is unknown, or they do not fit together; names a layout that does.
    """
    known = {each.name for each in slices}
    for name in names:
        if name not in known:
            raise UnknownName("MIG profile of this GPU", name, known)
    wanted = Counter(names)
    allowed = layouts(slices)
    for layout in allowed:
        if not wanted - Counter(profile_names(layout)):
            return _only(wanted, layout)
    near = max(allowed, key=lambda each: (sum((wanted & Counter(profile_names(each))).values()), -len(each)))
    raise UsageError(
        f"these instances do not fit on one GPU: {', '.join(names)}",
        hint=f"a layout near it: {', '.join(profile_names(near))}",
    )


def _only(wanted: Counter[str], layout: Layout) -> Layout:
    left = Counter(wanted)
    chosen = []
    for each in layout:
        if left[each.kind.name] > 0:
            left[each.kind.name] -= 1
            chosen.append(each)
    return tuple(chosen)


def commands(index: int, layout: Layout, *, had_instances: bool) -> list[list[str]]:
    """What makes the layout on the GPU at `index`, which must be in MIG mode and idle."""
    smi = ["nvidia-smi", "mig", "-i", str(index)]
    clear = [[*smi, "-dci"], [*smi, "-dgi"]] if had_instances else []
    return [*clear, [*smi, "-cgi", ",".join(f"{each.kind.name}:{each.start}" for each in layout), "-C"]]


def apply(index: int, layout: Layout, *, had_instances: bool) -> list[str]:
    """Make the layout; the output of each command.

    Raises:
        BackendError: a command failed. What it says is told, and which commands had been done before.
    """
    told: list[str] = []
    for each in commands(index, layout, had_instances=had_instances):
        text = " ".join(each)
        done_before = f"; {len(told)} of the commands were done before" if told else ""
        try:
            done = subprocess.run(
                each, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"`{text}` does not work: {error}{done_before}") from error
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())
            raise BackendError(
                f"`{text}` failed: {said}{done_before}", hint="it needs root, MIG mode, and a GPU that nobody uses"
            )
        told.append(done.stdout.strip())
    return told
