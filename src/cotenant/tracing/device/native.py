"""Teaches libtorch that a CUDA device exists, without one: the smallest patch that lets autograd run.

Backward of a fake CUDA tensor asks two C++ objects about devices: c10's guard for CUDA and ATen's CUDA hooks.
A CPU build has neither; a CUDA build without a driver has both, and they fail. Both are replaced in place, by
vtables whose entries return "1" (the device `cuda:0`, true), "0", the number of GPUs or their argument. No compiler, no
callback into Python, nothing of CUDA is ever called: a GPU that is present is not touched.

Which entries must say "no" or be replaced follows from the headers that ship with torch, read at run time.
Source: c10/core/impl/DeviceGuardImplInterface.h, ATen/detail/{Accelerator,CUDA}HooksInterface.h; PyTorch 2.4 to 2.15.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
from pathlib import Path

import torch

from cotenant.core.errors import TraceError

_WORD = ctypes.sizeof(ctypes.c_void_p)
_GUARD_SLOTS = 64
_CUDA = 1  # c10::DeviceType::CUDA

_ROOM = 64  # bytes for each function
_CELL = 32  # of them, where `current` finds what it answers

_GIVE_BACK = frozenset(
    (
        *("exchangeDevice", "getStream", "getDefaultStream", "getStreamFromGlobalPool", "getNewStream"),
        "exchangeStream",
    )
)
"""Functions that answer with the device they are asked about, or with its stream number 0."""

_cells: list[ctypes.c_uint32] = []  # the one that `set_current` writes to
_keep: list[object] = []  # what C++ points to must live as long as the process


def install(count: int = 1) -> None:
    """Patch this process for `count` GPUs, 127 at most; a second call does nothing.

    Raises:
        TraceError: kind `unsupported`: this processor, host policy or torch cannot be patched.
    """
    if _keep:
        return
    functions = _functions(count)
    include = Path(torch.__file__).parent / "include"
    _patch_guard(include, functions)
    _patch_hooks(include, functions["one"])


def set_current(index: int) -> None:
    """Let `cuda`, without a number, mean GPU `index`."""
    for cell in _cells:
        cell.value = _CUDA | index << 8


def wake_engine() -> None:
    """Give autograd its threads for the GPUs, if it ran in this process before they were there. Call inside the mode.

    It counts GPUs once, at its first backward pass. Source: torch/csrc/autograd/engine.cpp, `start_device_threads`.
    """
    x = torch.zeros((), device="cuda", requires_grad=True)
    try:
        (x * 1).backward()
    except RuntimeError as error:
        library = _library("libtorch_cpu.so")
        engine = getattr(library, "_ZN5torch8autograd6Engine18get_default_engineEv", None)
        start = getattr(library, "_ZN5torch8autograd6Engine20start_device_threadsEv", None)
        if "device_ready_queues_" not in str(error) or engine is None or start is None:
            raise
        engine.restype = ctypes.c_void_p
        start.argtypes = [ctypes.c_void_p]
        start(engine())


def _machine_code(count: int) -> dict[str, bytes]:
    """By name: `one`, `zero` and `count` return that; `same` the first argument's low 16 bits, a c10::Device; `current`
    what its cell holds, one as well.

    All clear the second result register, the number of a returned c10::Stream.
    """
    machine = platform.machine()
    if machine == "x86_64":
        number = struct.Struct("<Bi").pack
        back = bytes.fromhex("31d2c3")  # xor edx, edx; ret
        return {
            "one": number(0xB8, 1) + back,  # mov eax, 1
            "zero": number(0xB8, 0) + back,
            "count": number(0xB8, count) + back,
            "same": bytes.fromhex("0fb7c6") + back,  # movzx eax, si
            "current": bytes.fromhex("8b05") + struct.pack("<i", _CELL - 6) + back,  # mov eax, [rip + ...]
        }
    if machine == "aarch64":
        word = struct.Struct("<I").pack
        back = bytes.fromhex("010080d2c0035fd6")  # mov x1, #0; ret
        return {
            "one": word(0x52800000 | 1 << 5) + back,  # mov w0, #1
            "zero": word(0x52800000) + back,
            "count": word(0x52800000 | count << 5) + back,
            "same": word(0x12003C20) + back,  # and w0, w1, #0xffff
            "current": word(0x18000000 | _CELL // 4 << 5) + back,  # ldr w0, [pc + ...]
        }
    raise TraceError("unsupported", f"tracing is not possible on a `{machine}` processor (known: aarch64, x86_64)")


def _functions(count: int) -> dict[str, int]:
    """Addresses of the functions, by name."""
    codes = _machine_code(count)
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        raise TraceError(
            "unsupported",
            f"this host forbids executable memory ({error.strerror}), which tracing needs",
            hint="a hardened kernel or SELinux policy does this; allow `execmem` for this Python",
        ) from error
    page.write(b"".join(code.ljust(_ROOM, b"\0") for code in codes.values()))
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _keep.append(page)
    functions = {name: start + _ROOM * index for index, name in enumerate(codes)}
    _cells.append(ctypes.c_uint32.from_address(functions["current"] + _CELL))
    set_current(0)
    return functions


def _virtual_names(header: Path, known: list[str]) -> list[str]:
    """Virtual functions in the order of the vtable: those of the base (`known`), then the new ones of `header`.

    A destructor takes two entries. An override keeps the entry of its base.
    """
    try:
        text = header.read_text()
    except OSError as error:
        raise TraceError(
            "unsupported", f"torch {torch.__version__} ships without `{header.name}`, which tracing reads"
        ) from error
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"\[\[[^\]]*\]\]", "", text)
    start = text.index("{", text.index("Interface", text.index("struct "))) + 1
    names = list(known)
    for statement in re.split(r"[;{}]", text[start:]):
        flat = " ".join(statement.split())
        if "~" in flat and "Interface()" in flat:
            if not known:
                names += ["~", "~"]
            continue
        match = re.match(r"(?:virtual )(.*?)\b(\w+)\(", flat)
        if match and match.group(2) not in names:
            names.append(match.group(2))
    return names


def _patch_guard(include: Path, functions: dict[str, int]) -> None:
    names = _virtual_names(include / "c10/core/impl/DeviceGuardImplInterface.h", [])
    if not (8 <= len(names) <= _GUARD_SLOTS and "deviceCount" in names and "exchangeDevice" in names):
        raise TraceError("unsupported", f"torch {torch.__version__} has a device guard of unknown layout")
    slots = [functions[_answer(name)] for name in names]
    slots += [functions["one"]] * (_GUARD_SLOTS - len(slots))
    vtable = (ctypes.c_void_p * _GUARD_SLOTS)(*slots)
    instance = ctypes.c_void_p(ctypes.addressof(vtable))
    library = _library("libc10.so")
    try:
        registry = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except ValueError as error:
        raise TraceError("unsupported", f"torch {torch.__version__} has no device guard registry to patch") from error
    _keep.extend((vtable, instance))
    registry[_CUDA] = ctypes.addressof(instance)


def _answer(name: str) -> str:
    """Which function stands in for a virtual one."""
    if "aptur" in name:  # a stream that is being captured would make optimizers believe in a CUDA graph
        return "zero"
    if name == "deviceCount":
        return "count"
    if name == "getDevice":
        return "current"
    return "same" if name in _GIVE_BACK else "one"


def _patch_hooks(include: Path, one: int) -> None:
    base = _virtual_names(include / "ATen/detail/AcceleratorHooksInterface.h", [])
    names = _virtual_names(include / "ATen/detail/CUDAHooksInterface.h", base)
    wanted = {"hasPrimaryContext"} | ({"isBuilt"} if "isBuilt" in names else {"hasCUDA"})
    if not wanted <= set(names):
        raise TraceError("unsupported", f"torch {torch.__version__} has CUDA hooks of unknown layout")
    get_hooks = getattr(_library("libtorch_cpu.so"), "_ZN2at6detail12getCUDAHooksEv", None)
    if get_hooks is None:
        raise TraceError("unsupported", f"torch {torch.__version__} has no CUDA hooks to patch")
    get_hooks.restype = ctypes.c_void_p
    address = get_hooks()
    pointer = ctypes.c_void_p.from_address(address)
    length = len(names) + 2  # two words before the first entry: offset to top, type information
    table = (ctypes.c_void_p * length).from_address((pointer.value or 0) - 2 * _WORD)
    copy = (ctypes.c_void_p * length)(*table)
    for name in wanted:
        copy[names.index(name) + 2] = one
    _keep.append(copy)
    pointer.value = ctypes.addressof(copy) + 2 * _WORD


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
