"""The GPUs of all hosts in one list, and their newest samples."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from cotenant.core.errors import BackendError
from cotenant.core.fast_constructor import fast_replace
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.ports import AttemptRef
from cotenant.hosts.link import HostLink
from cotenant.hosts.messages import PID_BITS

logger = logging.getLogger(__name__)


class HostGpus:
    """The newest listing. One thread lists and samples; any thread may look up a host."""

    def __init__(self) -> None:
        self._listed: tuple[Gpu, ...] = ()
        self._host_by_gpu: Mapping[str, str] = {}
        self._owners: Mapping[int, AttemptRef] = {}
        self._warned_of: set[str] = set()
        self._ends_s: Mapping[str, float] = {}
        self._listed_from: tuple[Mapping[str, tuple[Gpu, ...]], frozenset[str], Mapping[str, float]] | None = None

    def set_end(self, host: str, at_s: float | None) -> None:
        """When the allocation of a host ends, by the workload manager; None: never, or its agent knows."""
        others = {name: end_s for name, end_s in self._ends_s.items() if name != host}
        self._ends_s = others if at_s is None else {**others, host: at_s}

    def inventory(self, links: Mapping[str, HostLink], retired: Collection[str]) -> tuple[Gpu, ...]:
        """GPUs of all hosts that have been heard of, in the order of `links`; retired hosts are left out."""
        ends_s = self._ends_s
        found_by_host = {host: _gpus_of(link) for host, link in links.items()}
        state = (found_by_host, frozenset(retired), ends_s)
        if state == self._listed_from:  # ten thousand GPUs, several times a second
            return self._listed
        listed: dict[str, Gpu] = {}
        left_out: dict[str, str] = {}
        for host, gpus in found_by_host.items():
            for gpu in gpus:
                if host in retired:
                    left_out[gpu.uuid] = host
                elif listed.setdefault(gpu.uuid, gpu).server != host:
                    self._warn_of_twin(gpu, listed[gpu.uuid].server)
        self._host_by_gpu = {**left_out, **{gpu.uuid: gpu.server for gpu in listed.values()}}
        found = tuple(
            replace(gpu, index=index, available_until_s=ends_s.get(gpu.server, gpu.available_until_s))
            for index, gpu in enumerate(listed.values())
        )
        if found != self._listed:  # the same object shows that nothing has changed
            self._listed = found
        self._listed_from = state
        return self._listed

    def sample(
        self, at_s: float, links: Mapping[str, HostLink], hosts: Mapping[AttemptRef, str]
    ) -> Mapping[str, GpuSample]:
        """The newest samples of listed GPUs on hosts that are not silent. `hosts`: where attempts are.

        Pids of the Nth host are raised by N * 2**22.
        """
        servers = {gpu.uuid: gpu.server for gpu in self._listed}
        samples: dict[str, GpuSample] = {}
        owners: dict[int, AttemptRef] = {}
        for number, (host, link) in enumerate(links.items(), start=1):
            reading, read_at_s = link.reading()
            if reading is None or read_at_s is None:
                continue
            base = number << PID_BITS
            owners.update((base + pid, ref) for pid, ref in reading.owners.items() if hosts.get(ref) == host)
            for uuid, sample in reading.samples.items():
                if servers.get(uuid) == host:
                    raised = tuple([fast_replace(process, pid=base + process.pid) for process in sample.processes])
                    samples[uuid] = fast_replace(sample, at_s=min(at_s, read_at_s), processes=raised)
        self._owners = owners
        return samples

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """The attempts of processes in the newest samples, by the pids there."""
        return {pid: self._owners[pid] for pid in pids if pid in self._owners}

    def host_of(self, uuids: Iterable[str]) -> str:
        """The host of GPUs, also of a retired one.

        Raises:
            BackendError: they are of no host, or of several.
        """
        hosts = {self._host_by_gpu.get(uuid) for uuid in uuids}
        if len(hosts) != 1:
            raise BackendError(
                f"its GPUs are on {len(hosts)} hosts, and an attempt runs on one", hint="ask for fewer GPUs"
            )
        (host,) = hosts
        if host is None:
            raise BackendError("its GPUs are of no host that is known")
        return host

    def _warn_of_twin(self, gpu: Gpu, other: str) -> None:
        if gpu.uuid not in self._warned_of:
            self._warned_of.add(gpu.uuid)
            fields = {"gpu": gpu.uuid, "host": gpu.server, "other": other}
            logger.warning("a GPU is listed by two hosts; the second one is left out", extra={"fields": fields})


def _gpus_of(link: HostLink) -> tuple[Gpu, ...]:
    reading, _ = link.reading()
    return () if reading is None else reading.gpus
