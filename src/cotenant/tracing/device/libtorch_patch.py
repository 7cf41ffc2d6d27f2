"""Makes libtorch believe that CUDA devices exist: the smallest patch with which autograd runs.

Backward of a fake CUDA tensor calls two C++ objects: c10's device guard for CUDA, and ATen's CUDA hooks. A CPU build
has neither; in a CUDA build without a driver both fail. Both get another vtable. Its functions return a constant (1,
which is also the device `cuda:0`; 0; the number of GPUs), their argument, or the thread's current GPU, which one of
them sets. There is no compiler, no callback into Python, and no call of CUDA: a GPU of the machine is not touched.

The order of the entries is read from the headers that ship with PyTorch, at run time.
Source: c10/core/impl/DeviceGuardImplInterface.h, ATen/detail/{Accelerator,CUDA}HooksInterface.h; PyTorch 2.4 to 2.15.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from cotenant.core.errors import TraceError
from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

_WORD = ctypes.sizeof(ctypes.c_void_p)
_GUARD_SLOTS = 64
_CUDA = 1  # c10::DeviceType::CUDA

_FUNCTION_BYTES = 64  # for each function
_LITERAL_OFFSET = 32  # of the called address in a function for aarch64

_RETURNS_ARGUMENT = frozenset(
    (
        "exchangeDevice", "getStream", "getDefaultStream", "getStreamFromGlobalPool", "getNewStream",
        "exchangeStream",
    )
)  # fmt: skip
"""Functions that return their device argument, or stream 0 of it."""

_tls_keys: list[int] = []  # the key of a thread's current device; without a value it is `cuda:0`
_pthread = ctypes.PyDLL(None)
_pthread.pthread_getspecific.argtypes = [ctypes.c_uint]
_pthread.pthread_getspecific.restype = ctypes.c_void_p
_pthread.pthread_setspecific.argtypes = [ctypes.c_uint, ctypes.c_void_p]
_referenced_by_cpp: list[object] = []  # C++ has pointers to these until the process ends


def patches(context: PatchContext) -> list[HookPatch]:
    """Two C++ objects of libtorch. They stay as they are when the table is undone."""
    return [
        HookPatch(
            target="torch._C", phase=Phase.DEVICE, register=lambda: install(context.gpu.count),
            reason="Backward of a CUDA tensor calls c10's device guard and ATen's CUDA hooks, which no CPU build has.",
            source="c10/core/impl/DeviceGuardImplInterface.h, ATen/detail/CUDAHooksInterface.h",
        )
    ]  # fmt: skip


def install(count: int = 1) -> None:
    """Patch this process for `count` GPUs, 127 at most; a second call does nothing.

    Raises:
        TraceError: kind `unsupported`: this processor, host policy or torch cannot be patched.
    """
    if _referenced_by_cpp:
        return
    functions = _functions(count)
    include = Path(torch.__file__).parent / "include"
    _patch_guard(include, functions)
    _patch_hooks(include, functions["one"])


def current_device() -> int:
    """Index of the current GPU of this thread."""
    return ((_pthread.pthread_getspecific(_tls_keys[0]) or 0) >> 8) & 0x7F if _tls_keys else 0


def set_current_device(index: int) -> None:
    """Make GPU `index` the current one of this thread."""
    for key in _tls_keys:
        _pthread.pthread_setspecific(key, _CUDA | index << 8)


def start_autograd_threads() -> None:
    """Start autograd's threads for the GPUs, if autograd ran in this process before `install`. Call inside the mode.

    Autograd counts GPUs once, at its first backward pass. Source: torch/csrc/autograd/engine.cpp,
    `start_device_threads`.
    """
    # A script that ran a backward pass on the CPU before has started the threads for 0 GPUs, and `std::call_once` in
    # `Engine::initialize_device_threads_pool` never starts them again: so `start_device_threads` is called by its
    # symbol.
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


def _machine_code(count: int, key: int, get: int, put: int) -> dict[str, bytes]:
    """Machine code of the functions, by name.

    `one`, `zero` and `count` return that number; `same` returns the low 16 bits of the first argument, a c10::Device;
    `current` returns the thread's value of `key`, or else `cuda:0`; `choose` sets it to such an argument.
    `get`, `put`: addresses of pthread_getspecific and pthread_setspecific. Functions with a result also clear the
    second result register, which holds the id of a returned c10::Stream.
    """
    machine = platform.machine()
    if machine == "x86_64":
        number = struct.Struct("<Bi").pack
        # System V ABI: `this` is in rdi, the first argument in rsi, a result of two words in rax and rdx.
        # A c10::Device is two int8: the type in the low byte, the index in the next.
        back = bytes.fromhex("31d2c3")  # xor edx, edx; ret
        return {
            "one": number(0xB8, 1) + back,  # mov eax, 1
            "zero": number(0xB8, 0) + back,
            "count": number(0xB8, count) + back,
            "same": bytes.fromhex("0fb7c6") + back,  # movzx eax, si
            "current": _x86_call(key, get) + bytes.fromhex("83c8014883c408") + back,  # or eax, 1; add rsp, 8
            "choose": bytes.fromhex("0fb7f6") + _x86_call(key, put) + bytes.fromhex("4883c408c3"),  # movzx esi, si
        }
    if machine == "aarch64":
        word = struct.Struct("<I").pack
        # AAPCS64: `this` is in x0, the first argument in x1, a result of two words in x0 and x1.
        back = bytes.fromhex("010080d2c0035fd6")  # mov x1, #0; ret
        return {
            "one": word(0x52800000 | 1 << 5) + back,  # mov w0, #1
            "zero": word(0x52800000) + back,
            "count": word(0x52800000 | count << 5) + back,
            "same": word(0x12003C20) + back,  # and w0, w1, #0xffff
            "current": _arm_call(key, get, after=[0x32000000], back=back),  # orr w0, w0, #1
            "choose": _arm_call(key, put, before=[0x12003C21], back=back),  # and w1, w1, #0xffff
        }
    raise TraceError("unsupported", f"tracing is not possible on a `{machine}` processor (known: aarch64, x86_64)")


def _x86_call(key: int, function: int) -> bytes:
    """A call: `sub rsp, 8; mov edi, key; mov rax, function; call rax`."""
    return (
        bytes.fromhex("4883ec08bf") + struct.pack("<I", key) + b"\x48\xb8" + struct.pack("<Q", function) + b"\xff\xd0"
    )


def _arm_call(key: int, function: int, *, before: Sequence[int] = (), after: Sequence[int] = (), back: bytes) -> bytes:
    """Code that saves the frame, sets w0 to `key`, runs `before`, calls `function`, runs `after` and returns."""
    words = [0xA9BF7BFD, 0x52800000 | key << 5, *before]  # stp x29, x30, [sp, #-16]!; mov w0, #key
    words.append(0x58000010 | (_LITERAL_OFFSET // 4 - len(words)) << 5)  # ldr x16, [pc + ...]
    words += [0xD63F0200, *after, 0xA8C17BFD]  # blr x16; ldp x29, x30, [sp], #16
    code = struct.pack(f"<{len(words)}I", *words) + back
    return code.ljust(_LITERAL_OFFSET, b"\0") + struct.pack("<Q", function)


def _create_tls_key() -> int:
    """A new key of thread-specific data."""
    made = ctypes.c_uint()
    if _pthread.pthread_key_create(ctypes.byref(made), None):
        raise TraceError("unsupported", "this process has no key of thread-specific data left, and tracing needs one")
    _tls_keys.append(made.value)
    return made.value


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _functions(count: int) -> dict[str, int]:
    """Addresses of the functions, by name."""
    get, put = _address(_pthread.pthread_getspecific), _address(_pthread.pthread_setspecific)
    codes = _machine_code(count, _create_tls_key(), get, put)
    try:
        # Written and executed through one mapping: SELinux denies it without `execmem`, PaX by MPROTECT.
        page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    except OSError as error:
        raise TraceError(
            "unsupported",
            f"this host forbids executable memory ({error.strerror}), which tracing needs",
            hint="a hardened kernel or SELinux policy does this; allow `execmem` for this Python",
        ) from error
    page.write(b"".join(code.ljust(_FUNCTION_BYTES, b"\0") for code in codes.values()))
    start = ctypes.addressof(ctypes.c_char.from_buffer(page))
    _referenced_by_cpp.append(page)
    return {name: start + _FUNCTION_BYTES * index for index, name in enumerate(codes)}


def _virtual_names(header: Path, known: list[str]) -> list[str]:
    """Virtual functions in the order of the vtable: those of the base (`known`), then the new ones of `header`.

    A destructor has two entries, and an override uses the entry of its base (Itanium C++ ABI, section 2.5).
    """
    try:
        text = header.read_text()
    except OSError as error:
        raise TraceError(
            "unsupported", f"torch {torch.__version__} ships without `{header.name}`, which tracing reads"
        ) from error
    # Comments and attributes hold parentheses and semicolons, at which the text is split below.
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
    slots = [functions[_stub_for(name)] for name in names]
    slots += [functions["one"]] * (_GUARD_SLOTS - len(slots))
    vtable = (ctypes.c_void_p * _GUARD_SLOTS)(*slots)
    instance = ctypes.c_void_p(ctypes.addressof(vtable))
    library = _library("libc10.so")
    try:
        # One atomic pointer per device type, read anew by each call (DeviceGuardImplInterface.h, `getDeviceGuardImpl`).
        registry = (ctypes.c_void_p * 2).in_dll(library, "_ZN3c104impl26device_guard_impl_registryE")
    except ValueError as error:
        raise TraceError("unsupported", f"torch {torch.__version__} has no device guard registry to patch") from error
    _referenced_by_cpp.extend((vtable, instance))
    registry[_CUDA] = ctypes.addressof(instance)


def _stub_for(name: str) -> str:
    """Name of the function that replaces a virtual one."""
    if "aptur" in name:  # `isStreamCapturing` and the like: optimizers check for a CUDA graph
        return "zero"
    if name == "deviceCount":
        return "count"
    if name == "getDevice":
        return "current"
    if name == "setDevice":  # autograd's thread for a GPU calls it first: `set_device`, torch/csrc/autograd/engine.cpp
        return "choose"
    return "same" if name in _RETURNS_ARGUMENT else "one"


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
    # Only a copy is changed: the vtable itself is in memory that the loader has made read-only.
    length = len(names) + 2  # two words before the first entry: offset to top, type information
    table = (ctypes.c_void_p * length).from_address((pointer.value or 0) - 2 * _WORD)
    copy = (ctypes.c_void_p * length)(*table)
    for name in wanted:
        copy[names.index(name) + 2] = one
    _referenced_by_cpp.append(copy)
    pointer.value = ctypes.addressof(copy) + 2 * _WORD


def _library(name: str) -> ctypes.CDLL:
    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
