"""`nvidia-smi` for the simulated GPUs: lists, tables, `--query-gpu` in CSV, and `-q` for the memory.

`install` makes the program. It is this file, run by an interpreter of its own with the standard library only: the
folder of the program is put before the others in PATH, where most scripts look for it. Not answered: `topo` and other
reports, also those of `-q` that are not of memory or utilization; a program that is named by its path. Source:
nvidia-smi(1).
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

DRIVER_VERSION, CUDA_VERSION = "580.65.06", "13.0"
TEMPERATURE_C, POWER_W, POWER_LIMIT_W, CLOCK_MHZ = 30, 50, 400, 1410
"""Of an idle GPU; no script's memory depends on them."""

NOT_AVAILABLE = "[N/A]"
_WIDTH = 89
_MIB = 1 << 20
_LISTS = ("--query-compute-apps", "--query-accounted-apps", "--query-retired-pages")
_WITH_VALUE = ("-i", "--id", "-l", "--loop", "-lms", "--loop-ms", "-f", "--filename", "-c", "-d", "--display")
_IGNORED = ("-l", "--loop", "-lms", "--loop-ms", "-f", "--filename")

_FIELDS: dict[str, tuple[str, Callable[[Mapping[str, Any]], object]]] = {
    "index": ("", lambda gpu: gpu["index"]),
    "count": ("", lambda gpu: gpu["count"]),
    "name": ("", lambda gpu: gpu["name"]),
    "uuid": ("", lambda gpu: gpu["uuid"]),
    "pci.bus_id": ("", lambda gpu: gpu["bus_id"]),
    "driver_version": ("", lambda _: DRIVER_VERSION),
    "compute_cap": ("", lambda gpu: gpu["capability"]),
    "memory.total": ("MiB", lambda gpu: gpu["memory_bytes"] // _MIB),
    "memory.free": ("MiB", lambda gpu: gpu["memory_bytes"] // _MIB),
    "memory.used": ("MiB", lambda _: 0),
    "memory.reserved": ("MiB", lambda _: 0),
    "utilization.gpu": ("%", lambda _: 0),
    "utilization.memory": ("%", lambda _: 0),
    "temperature.gpu": ("", lambda _: TEMPERATURE_C),
    "power.draw": ("W", lambda _: f"{POWER_W:.2f}"),
    "power.limit": ("W", lambda _: f"{POWER_LIMIT_W:.2f}"),
    "clocks.sm": ("MHz", lambda _: CLOCK_MHZ),
    "clocks.gr": ("MHz", lambda _: CLOCK_MHZ),
    "clocks.mem": ("MHz", lambda _: CLOCK_MHZ),
    "pstate": ("", lambda _: "P0"),
    "compute_mode": ("", lambda _: "Default"),
    "persistence_mode": ("", lambda _: "Enabled"),
    "mig.mode.current": ("", lambda _: "Disabled"),
    "display_active": ("", lambda _: "Disabled"),
    "display_mode": ("", lambda _: "Disabled"),
}
_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.current.sm": "clocks.sm",
    "clocks.current.graphics": "clocks.gr",
    "clocks.current.memory": "clocks.mem",
}


def install(folder: Path, gpu: Mapping[str, Any], count: int) -> Path:
    """Make the program in `folder` for `count` GPUs, to be put before the other folders of PATH.

    `gpu`: name, capability, total_bytes; nvml_total_bytes, where that is more.
    """
    folder.mkdir()
    major, minor = gpu["capability"]
    shown = [
        {
            "index": index,
            "count": count,
            "name": gpu["name"],
            "uuid": uuid_of(index),
            "bus_id": bus_id_of(index),
            "capability": f"{major}.{minor}",
            "memory_bytes": gpu.get("nvml_total_bytes") or gpu["total_bytes"],
        }
        for index in range(count)
    ]
    (folder / "gpus.json").write_text(json.dumps(shown))
    program = folder / "nvidia-smi"
    words = [sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder / "gpus.json")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o755)
    return folder


def uuid_of(index: int) -> str:
    """UUID of a simulated GPU, which no real one has; the null GPU's libraries have the same (csrc/null_gpu.h)."""
    return f"GPU-42424242-4242-4242-4242-4242424242{0x42 + index:02x}"


def bus_id_of(index: int) -> str:
    """PCI bus ID of a simulated GPU."""
    return f"00000000:{1 + index:02X}:00.0"


def main(arguments: Sequence[str]) -> int:
    """Print what nvidia-smi prints for `arguments`, the first of which is the file with the GPUs."""
    gpus, options = json.loads(Path(arguments[0]).read_text()), _options(arguments[1:])
    wanted = next((options.pop(name) for name in ("-i", "--id") if name in options), "")
    if wanted:
        gpus = [gpu for gpu in gpus if {str(gpu["index"]), gpu["uuid"], gpu["bus_id"]} & set(wanted.split(","))]
        if not gpus:
            print("No devices were found")
            return 6
    layout = options.pop("--format", "")
    for name in _IGNORED:
        options.pop(name, None)
    query = options.pop("--query-gpu", "")
    if query:
        return _print_csv(query.split(","), gpus, layout.split(","))
    listed = next((options.pop(name) for name in _LISTS if name in options), "")
    if listed:
        return _print_csv(listed.split(","), [], layout.split(","))
    if options.keys() & {"-L", "--list-gpus"}:
        print("\n".join(f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})" for gpu in gpus))
        return 0
    if options.keys() & {"-q", "--query"} and not options.keys() - {"-q", "--query", "-d", "--display"}:
        _print_report(gpus)
        return 0
    if options:
        print(f"nvidia-smi of a simulated GPU does not know `{next(iter(options))}`", file=sys.stderr)
        return 2
    _print_table(gpus)
    return 0


def _options(words: Sequence[str]) -> dict[str, str]:
    """Options with their values; the empty text for one without."""
    found: dict[str, str] = {}
    left = list(words)
    while left:
        name, _, value = left.pop(0).partition("=")
        if name in _WITH_VALUE and not value and left and not left[0].startswith("-"):
            value = left.pop(0)
        found[name] = value
    return found


def _print_csv(names: Sequence[str], gpus: Sequence[Mapping[str, Any]], layout: Sequence[str]) -> int:
    if "csv" not in layout:
        print("Missing format option. Only valid value is csv.", file=sys.stderr)
        return 2
    names = [name.strip() for name in names]
    fields = [_FIELDS.get(_ALIASES.get(name, name), ("", lambda _: NOT_AVAILABLE)) for name in names]
    if "noheader" not in layout:
        print(", ".join(f"{name} [{unit}]" if unit else name for name, (unit, _) in zip(names, fields, strict=True)))
    for gpu in gpus:
        cells = [f"{value(gpu)} {'' if 'nounits' in layout else unit}".strip() for unit, value in fields]
        print(", ".join(cells))
    return 0


def _print_table(gpus: Sequence[Mapping[str, Any]]) -> None:
    """The report without options; its columns are not those of the real one, whose layout changes with versions."""
    edge, rule = "+" + "-" * _WIDTH + "+", "+" + "=" * _WIDTH + "+"
    lines = [edge, _row(f"NVIDIA-SMI {DRIVER_VERSION}  Driver Version: {DRIVER_VERSION}  CUDA Version: {CUDA_VERSION}")]
    lines.append(rule)
    for gpu in gpus:
        memory = f"0MiB / {gpu['memory_bytes'] // _MIB}MiB"
        lines.append(_row(f"{gpu['index']:>3}  {gpu['name']:<44} {gpu['bus_id']}"))
        lines.append(_row(f"N/A  {TEMPERATURE_C}C  P0  {POWER_W}W / {POWER_LIMIT_W}W | {memory:>22} | 0%  Default"))
        lines.append(edge)
    lines += [_row("Processes:"), _row(" No running processes found"), edge]
    print("\n".join(lines))


def _print_report(gpus: Sequence[Mapping[str, Any]]) -> None:
    """The report of `-q`: scripts look for the free memory of each GPU in it."""
    lines = ["", "==============NVSMI LOG==============", "", f"Driver Version : {DRIVER_VERSION}"]
    lines += [f"CUDA Version   : {CUDA_VERSION}", "", f"Attached GPUs  : {len(gpus)}"]
    for gpu in gpus:
        total = gpu["memory_bytes"] // _MIB
        memory = {"Total": f"{total} MiB", "Reserved": "0 MiB", "Used": "0 MiB", "Free": f"{total} MiB"}
        lines += [f"GPU {gpu['bus_id']}", "    FB Memory Usage"]
        lines += [f"        {name:<34}: {value}" for name, value in memory.items()]
        lines += ["    Utilization", *(f"        {name:<34}: 0 %" for name in ("Gpu", "Memory")), ""]
    print("\n".join(lines))


def _row(text: str) -> str:
    return f"| {text:<{_WIDTH - 2}} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
