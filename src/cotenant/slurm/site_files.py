"""Lines for a site's gres.conf and slurm.conf that let jobs share GPUs by memory, and a check of the site's own files.

A shard stands for 1 GiB here. Source: gres.conf(5), slurm.conf(5) of Slurm 22.05 to 25.11.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cotenant.core.errors import UsageError
from cotenant.core.units import GiB
from cotenant.slurm.shards import memory_of_type

MAX_HOSTS = 100_000
GresTypeOf = Literal["none", "model", "gpu"]
"""What a type of GRES names: nothing, the model of a GPU, or one GPU of a node, so that a job can be put on it."""

Counts = dict[tuple[str, str], int]
"""Numbers by name (`gpu`, `shard`) and type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """Nodes with the same GPUs.

    Attributes:
        names: as Slurm writes them, e.g. `n[1-4]`.
        model: name of the GPUs' model, as the site calls it; `memory_bytes`: of one GPU.
        gpus: of one node.
        device: path of a GPU's file, `%d` for its index.
    """

    names: str
    model: str
    memory_bytes: int
    gpus: int
    device: str = "/dev/nvidia%d"

    @property
    def shards(self) -> int:
        """Of one GPU: its memory in whole GiB."""
        return self.memory_bytes // GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteLines:
    """Lines to add; `node_gres` is the value of `Gres=` for each group of nodes."""

    gres_conf: tuple[str, ...]
    slurm_conf: tuple[str, ...]
    node_gres: Mapping[str, str]


def site_lines(groups: Sequence[NodeGroup], type_of: GresTypeOf = "model") -> SiteLines:
    """The lines for a site of these nodes.

    slurm.conf repeats the counts by type: without them Slurm 24.11 does not give shards back when a job ends.
    """
    gres_conf = ["AutoDetect=off"]
    node_gres = {}
    for group in groups:
        words = []
        for name, count in (("gpu", 1), ("shard", group.shards)):
            kinds = [_type(group, index, type_of) for index in range(group.gpus)]
            for index, kind in enumerate(kinds):
                typed = f" Type={kind}" if kind else ""
                counted = f" Count={count}" if name == "shard" else ""
                device = group.device.replace("%d", str(index))
                gres_conf.append(f"NodeName={group.names} Name={name}{typed}{counted} File={device}")
            for kind, same in itertools.groupby(kinds):
                words.append(":".join(filter(None, (name, kind, str(count * len(list(same)))))))
        node_gres[group.names] = ",".join(words)
    slurm_conf = [
        "GresTypes=gpu,shard",
        "SelectType=select/cons_tres",
        *(f"NodeName={names} Gres={gres}" for names, gres in node_gres.items()),
    ]
    return SiteLines(gres_conf=tuple(gres_conf), slurm_conf=tuple(slurm_conf), node_gres=node_gres)


def _type(group: NodeGroup, index: int, type_of: GresTypeOf) -> str:
    if type_of == "gpu":
        return f"g{index}"
    return re.sub(r"[^a-z0-9_.-]", "-", group.model.lower()) if type_of == "model" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteProblem:
    """What is wrong with a site's files.

    Attributes:
        severity: `problem`: jobs fail or wait for ever; `warning`: it works, and not as one expects.
        where: file or nodes.
        text: what is found and what is wanted.
    """

    severity: Literal["problem", "warning"]
    where: str
    text: str


def check_site(slurm_conf: str, gres_conf: str) -> list[SiteProblem]:
    """What prevents jobs from sharing GPUs by shards, in the text of a site's two files.

    Raises:
        UsageError: a line of nodes cannot be read.
    """
    settings, nodes = _read_slurm_conf(slurm_conf)
    found = list(_check_settings(settings))
    devices = _read_gres_conf(gres_conf)
    seen: set[str] = set()
    for host, counts in nodes.items():
        if not any(name == "gpu" for name, _ in counts):
            continue
        for problem in _check_node(counts, devices.get(host) or devices.get("", {})):
            if problem.text not in seen:  # once for all nodes that are alike
                seen.add(problem.text)
                found.append(SiteProblem(severity=problem.severity, where=f"node {host}", text=problem.text))
    if not any(name == "gpu" for counts in nodes.values() for name, _ in counts):
        found.append(SiteProblem(severity="problem", where="slurm.conf", text="no node has `Gres=gpu:...`"))
    return found


def _check_settings(settings: Mapping[str, str]) -> Iterable[SiteProblem]:
    types = {word.strip() for word in settings.get("grestypes", "").split(",")} - {""}
    missing = sorted({"gpu", "shard"} - types)
    if missing:
        text = f"GresTypes={settings.get('grestypes', '')}, wanted {' and '.join(missing)} in it"
        yield SiteProblem(severity="problem", where="slurm.conf", text=text)
    if {"shard", "mps"} <= types:
        text = "GresTypes has `shard` and `mps`: the later plug-in removes CUDA_VISIBLE_DEVICES from jobs of the other"
        yield SiteProblem(severity="warning", where="slurm.conf", text=text)
    select = settings.get("selecttype")
    if select is None:
        text = "no SelectType: the default before Slurm 23.11 cannot count shards, wanted select/cons_tres"
        yield SiteProblem(severity="warning", where="slurm.conf", text=text)
    elif select.lower() != "select/cons_tres":
        text = f"SelectType={select} cannot count shards, wanted select/cons_tres"
        yield SiteProblem(severity="problem", where="slurm.conf", text=text)


def _check_node(counts: Counts, devices: Counts) -> Iterable[SiteProblem]:
    gpus = {kind: number for (name, kind), number in counts.items() if name == "gpu"}
    shards = {kind: number for (name, kind), number in counts.items() if name == "shard"}
    if not shards:
        yield SiteProblem(severity="warning", where="", text="has GPUs and no shards: its jobs get whole GPUs")
    for kind, number in shards.items():
        held = gpus.get(kind) if kind in gpus else sum(gpus.values())
        if not held or number % held:
            text = f"{number} shards{_of(kind)} on {held or 0} GPUs, wanted as many on each"
            yield SiteProblem(severity="problem", where="", text=text)
            continue
        memory_bytes = memory_of_type(kind) if kind else None
        if memory_bytes is not None and not GiB / 2 <= memory_bytes / (number / held) <= 2 * GiB:
            size = memory_bytes * held / number / GiB
            text = f"a shard{_of(kind)} is {size:.2f} GiB, wanted about 1: --gres=shard:N is read as N GiB elsewhere"
            yield SiteProblem(severity="warning", where="", text=text)
    for name in ("gpu", "shard"):
        here = {kind: number for (what, kind), number in counts.items() if what == name}
        there = {kind: number for (what, kind), number in devices.items() if what == name}
        if there and here != there:
            text = f"{name}s are {_shown(here)} in slurm.conf and {_shown(there)} in gres.conf, wanted the same"
            yield SiteProblem(severity="problem", where="", text=text)


def _of(kind: str) -> str:
    return f" of {kind}" if kind else ""


def _shown(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number}{_of(kind)}" for kind, number in sorted(counts.items())) or "none"


def _read_slurm_conf(text: str) -> tuple[dict[str, str], dict[str, Counts]]:
    """Settings by their name in lower case, and the GRES of each node."""
    settings: dict[str, str] = {}
    nodes: dict[str, Counts] = {}
    default = ""
    for pairs in _lines(text):
        names = pairs.get("nodename")
        if names is None:
            settings |= pairs
        elif names.upper() == "DEFAULT":
            default = pairs.get("gres", default)
        else:
            counts = _counts(pairs.get("gres", default))
            nodes |= dict.fromkeys(expand_hosts(names), counts)
    return settings, nodes


def _read_gres_conf(text: str) -> dict[str, Counts]:
    """The GRES of each node; those of lines without nodes, which are for all, have the name ``."""
    found: dict[str, Counts] = {}
    for pairs in _lines(text):
        name = pairs.get("name", "").lower()
        if name not in ("gpu", "shard"):
            continue
        files = len(expand_hosts(pairs.get("file") or pairs.get("multiplefiles") or "")) or 1
        count = _number(pairs["count"]) if "count" in pairs else files
        key = (name, pairs.get("type", "").lower())
        for host in expand_hosts(pairs.get("nodename", "")) or [""]:
            counts = found.setdefault(host, {})
            counts[key] = counts.get(key, 0) + count
    return found


def _lines(text: str) -> Iterable[dict[str, str]]:
    """Pairs of each line, names in lower case; a line that ends with a backslash goes on with the next."""
    for line in text.replace("\\\n", " ").splitlines():
        plain = re.sub(r"(?<!\\)#.*", "", line)
        pairs = re.findall(r"(\w+)\s*=\s*(\"[^\"]*\"|\S+)", plain)
        if pairs:
            yield {name.lower(): value.strip('"') for name, value in pairs}


def _counts(gres: str) -> Counts:
    """`gpu:a100:4(S:0-1),shard:a100:160` by name and type."""
    found: Counts = {}
    for part in filter(None, re.sub(r"\([^)]*\)", "", gres).split(",")):
        name, *rest = part.split(":")
        count = _number(rest.pop()) if rest and rest[-1][:1].isdigit() else 1
        kinds = [word for word in rest if word != "no_consume"]
        key = (name.lower(), kinds[0].lower() if kinds else "")
        found[key] = found.get(key, 0) + count
    return found


def _number(text: str) -> int:
    """`40`, or `2K`: with K, M, G it is a multiple of 1024."""
    match = re.fullmatch(r"(\d{1,9})([KMG]?)", text.upper())
    if match is None:
        raise UsageError(f"`{text}` is no count of GRES", hint="write e.g. `Count=40`")
    return int(match[1]) << 10 * "_KMG".index(match[2] or "_")


def expand_hosts(text: str) -> list[str]:
    """`n[1-2,07],login` as the names that it stands for; files are written so, too.

    Raises:
        UsageError: a range is open, or stands for more than `MAX_HOSTS`.
    """
    found: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text):
        names = [""]
        for literal, ranges in re.findall(r"([^\[]+)|\[([^\]]*)\]", part):
            words = [literal] if literal else _expand_ranges(ranges)
            if len(names) * len(words) > MAX_HOSTS:
                raise UsageError(f"`{part}` stands for more than {MAX_HOSTS} names")
            names = [name + word for name in names for word in words]
        found += names
    if text.count("[") != text.count("]"):
        raise UsageError(f"`{text}` has an open bracket")
    return found


def _expand_ranges(text: str) -> list[str]:
    words: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            words.append(part)
            continue
        if not (first.isdecimal() and last.isdecimal() and 0 <= int(last) - int(first) <= MAX_HOSTS):
            raise UsageError(f"`{part}` is no range of numbers")
        words += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return words
