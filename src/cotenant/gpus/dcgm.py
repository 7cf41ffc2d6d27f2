"""SM activity from DCGM, for GPUs older than Hopper, whose NVML has none.

One `dcgmi dmon` runs as long as its reader and prints a row per GPU and second. DCGM's Python bindings change between
its releases, the table does not. The reader configures nothing and touches no DCGM group.
"""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace

from cotenant.core.errors import BackendError
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.ports import GpuBackend
from cotenant.gpus.mig_control import MigControl

logger = logging.getLogger(__name__)

FIELDS = {
    "gract": (1001, "GRACT"),
    "smact": (1002, "SMACT"),
    "smocc": (1003, "SMOCC"),
    "tensor": (1004, "TENSO"),
    "drama": (1005, "DRAMA"),
    "fp32": (1007, "FP32A"),
    "pcie_tx_bytes_s": (1009, "PCITX"),
    "pcie_rx_bytes_s": (1010, "PCIRX"),
}
"""Fields of a sample: DCGM's profiling field, and the heading that `dcgmi dmon` prints for it (dcgm_fields.h)."""
MAX_PCIE_BYTES_S = 2.0**40
"""No link is faster; DCGM's blank values are."""
STALE_S = 3.0
"""A row older than this is not used."""
DISCOVERY_TIMEOUT_S = 20.0
"""For `dcgmi discovery`, which lists the GPUs."""
MAX_BACKOFF_S = 60.0

_ROW = re.compile(r"^GPU\s+(\d+)\s+(.*)$")
_LISTED = re.compile(r"^\|\s*(\d+)\s*\|")
_UUID = re.compile(r"Device UUID:\s*(GPU-[0-9A-Fa-f-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DcgmReading:
    """Activity of one GPU in the last second, as in `core.gpu.GpuSample`; None where DCGM printed `N/A`."""

    smact: float | None
    smocc: float | None
    drama: float | None
    gract: float | None = None
    tensor: float | None = None
    fp32: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None


class DmonTable:
    """Parses the output of `dcgmi dmon` line by line. The heading may be repeated, with columns in any order."""

    def __init__(self) -> None:
        self._columns: list[str] = []

    def row(self, line: str) -> tuple[int, DcgmReading] | None:
        """(DCGM's index of the GPU, its activity); None for headings, MIG instances and other lines."""
        text = line.strip()
        if text.startswith("#"):
            self._columns = text.split()[1:]
            return None
        found = _ROW.match(text)
        if found is None or not self._columns:
            return None
        cells = found.group(2).split()
        if len(cells) != len(self._columns):
            return None
        by_heading = dict(zip(self._columns, cells, strict=True))
        values = {name: _value(name, by_heading.get(heading, "N/A")) for name, (_, heading) in FIELDS.items()}
        return int(found.group(1)), DcgmReading(**values)


def parse_discovery(text: str) -> dict[int, str]:
    """UUIDs by DCGM's GPU index, from `dcgmi discovery -l`."""
    uuids: dict[int, str] = {}
    number: int | None = None
    for line in text.splitlines():
        listed = _LISTED.match(line)
        if listed is not None:
            number = int(listed.group(1))
        named = _UUID.search(line)
        if named is not None and number is not None:
            uuids[number] = named.group(1)
    return uuids


class DcgmReader:
    """The newest activity of each GPU, by UUID. `dcgmi` is restarted after `back_off_s`, doubled up to `MAX_BACKOFF_S`.

    Raises:
        BackendError: there is no `dcgmi`, its host engine does not answer, or it lists no GPU.
    """

    def __init__(
        self, *, command: str = "dcgmi", back_off_s: float = 1.0, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._command = command
        self._back_off_s = back_off_s
        self._now = now
        self._uuids = self._discover()
        self._newest: dict[str, tuple[float, DcgmReading]] = {}
        self._closing = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="dcgm", daemon=True)
        self._thread.start()

    def read(self) -> Mapping[str, DcgmReading]:
        """The activity of GPUs that have a row not older than `STALE_S`."""
        now_s = self._now()
        return {uuid: found for uuid, (at_s, found) in list(self._newest.items()) if now_s - at_s <= STALE_S}

    def close(self) -> None:
        """End `dcgmi`."""
        self._closing.set()
        with self._lock:
            if self._process is not None:
                self._process.kill()
        self._thread.join(timeout=5.0)

    def _discover(self) -> dict[int, str]:
        hint = "is `nv-hostengine` running? (systemctl status nvidia-dcgm)"
        try:
            done = subprocess.run(
                [self._command, "discovery", "-l"],
                capture_output=True,
                text=True,
                errors="replace",
                timeout=DISCOVERY_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BackendError(f"`{self._command} discovery -l` does not work: {error}", hint=hint) from error
        uuids = parse_discovery(done.stdout)
        if not uuids:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise BackendError(f"DCGM lists no GPU: {output[0] if output else 'no output'}", hint=hint)
        return uuids

    def _run(self) -> None:
        back_off_s = self._back_off_s
        while not self._closing.is_set():
            rows = 0
            for number, activity in self._rows():
                rows += 1
                if number in self._uuids:
                    self._newest[self._uuids[number]] = (self._now(), activity)
            back_off_s = self._back_off_s if rows else min(MAX_BACKOFF_S, 2 * back_off_s)
            if not self._closing.wait(back_off_s):
                logger.warning("dcgmi dmon has ended and is started again")

    def _rows(self) -> Iterator[tuple[int, DcgmReading]]:
        """Rows until `dcgmi` ends, or cannot be started."""
        fields = ",".join(str(field) for field, _ in FIELDS.values())
        with self._lock:
            if self._closing.is_set():
                return
            try:
                self._process = subprocess.Popen(
                    [self._command, "dmon", "-e", fields, "-d", "1000"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    errors="replace",
                )
            except OSError:
                self._process = None
                return
        table = DmonTable()
        with self._process as process:
            for line in process.stdout or ():
                row = table.row(line)
                if row is not None:
                    yield row


class DcgmActivityBackend:
    """Another backend, with SM activity from DCGM in samples that have none."""

    def __init__(self, backend: GpuBackend, reader: DcgmReader) -> None:
        self._backend = backend
        self._reader = reader
        self.name = backend.name

    @property
    def mig(self) -> MigControl | None:
        """Access of the other backend to MIG layouts, if it has any."""
        control: MigControl | None = getattr(self._backend, "mig", None)
        return control

    def inventory(self) -> tuple[Gpu, ...]:
        """The inventory of the other backend."""
        return self._backend.inventory()

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """The samples of the other backend, completed."""
        activity = self._reader.read()
        samples = self._backend.sample(at_s)
        return {uuid: _completed(sample, activity.get(uuid)) for uuid, sample in samples.items()}

    def close(self) -> None:
        """Close both."""
        with contextlib.suppress(Exception):
            self._reader.close()
        self._backend.close()


def _completed(sample: GpuSample, activity: DcgmReading | None) -> GpuSample:
    if activity is None or sample.smact is not None:
        return sample
    return replace(sample, **asdict(activity))


def _value(name: str, cell: str) -> float | None:
    """A cell as the field `name` has it.

    DCGM prints `N/A` for what it has not read, and numbers near 2**47 for blank values.
    """
    try:
        value = float(cell)
    except ValueError:
        return None
    if name.endswith("_bytes_s"):
        return value if 0.0 <= value < MAX_PCIE_BYTES_S else None
    return min(1.0, value) if 0.0 <= value <= 1.5 else None
