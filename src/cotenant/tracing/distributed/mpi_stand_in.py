"""`mpi4py` for rank 0 of the processes that `mpiexec` would start.

The real one talks to a launcher that is not there, and finds one process. What rank 0 gets from others is what it has
itself: a sum is as many times its own value as there are processes. Messages between two ranks are not modeled.
Source: mpi4py/MPI.src/Comm.pyx, `Comm` and `Intracomm`.
"""

from __future__ import annotations

import socket
import sys
import types
from typing import Any

_ADDED = ("SUM",)  # operations whose result grows with the number of processes
_OTHERS = ("MAX", "MIN", "PROD", "LAND", "LOR", "IN_PLACE", "COMM_TYPE_SHARED", "UNDEFINED", "INFO_NULL")


class Communicator:
    """As `MPI.COMM_WORLD`, of `size` processes."""

    rank = 0

    def __init__(self, size: int, local: int) -> None:
        self.size = size
        self._local = local

    def Get_rank(self) -> int:  # noqa: N802 - mpi4py's name, as all below
        """Of this process."""
        return 0

    def Get_size(self) -> int:  # noqa: N802
        """Processes in all."""
        return self.size

    def bcast(self, value: Any = None, root: int = 0) -> Any:
        """What rank 0 sends, and so has."""
        return value

    def gather(self, value: Any = None, root: int = 0) -> list[Any]:
        """One value of each process."""
        return [value] * self.size

    allgather = gather

    def scatter(self, values: Any = None, root: int = 0) -> Any:
        """The first value."""
        return values[0]

    def allreduce(self, value: Any = None, op: str = "SUM", root: int = 0) -> Any:
        """The sum, or another result, of values that are all the same."""
        return value * self.size if op in _ADDED else value

    reduce = allreduce

    def Allreduce(self, source: Any, target: Any = None, op: str = "SUM", root: int = 0) -> None:  # noqa: N802
        """The same of arrays, written to `target`."""
        if isinstance(source, str) or target is None:  # in place
            return
        target[...] = self.allreduce(source, op)

    Reduce = Allreduce

    def Allgather(self, source: Any, target: Any) -> None:  # noqa: N802
        """Arrays of all processes, side by side."""
        target[...] = source

    def Bcast(self, array: Any = None, root: int = 0) -> None:  # noqa: N802
        """Rank 0 has it."""

    def Barrier(self) -> None:  # noqa: N802
        """All others have arrived."""

    barrier = Barrier

    def Split_type(self, kind: Any = None, key: int = 0, *args: Any, **kwargs: Any) -> Communicator:  # noqa: N802
        """Processes of this machine."""
        return Communicator(self._local, self._local)

    def Split(self, color: Any = 0, key: int = 0) -> Communicator:  # noqa: N802
        """All: which color the others have is not known."""
        return self

    def Dup(self, *args: Any) -> Communicator:  # noqa: N802
        """The same processes."""
        return self

    Clone = Dup

    def Abort(self, code: int = 1) -> None:  # noqa: N802
        """Ends the script."""
        raise SystemExit(code)


def install(total: int, local: int) -> None:
    """Let the script import `mpi4py.MPI` for rank 0 of `total` processes, `local` of them on this machine."""
    package, module = types.ModuleType("mpi4py"), types.ModuleType("mpi4py.MPI")
    vars(module).update({name: name for name in (*_ADDED, *_OTHERS)})
    vars(module).update(
        COMM_WORLD=Communicator(total, local),
        COMM_SELF=Communicator(1, 1),
        Comm=Communicator,
        Intracomm=Communicator,
        Get_processor_name=socket.gethostname,
        Is_initialized=lambda: True,
        Is_finalized=lambda: False,
        Init=lambda: None,
        Finalize=lambda: None,
    )
    vars(package).update(MPI=module, __path__=[], rc=types.SimpleNamespace())
    sys.modules["mpi4py"], sys.modules["mpi4py.MPI"] = package, module
