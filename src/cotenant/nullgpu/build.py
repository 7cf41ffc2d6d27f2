"""Builds the libraries of the null GPU with the system's C compiler, once for each set of CUDA wheels."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.nullgpu.wheels import CudaWheels, NullGpuError

SOURCES = Path(__file__).parent / "csrc"
DRIVER, NVML = "libcuda.so.1", "libnvidia-ml.so.1"
_SOURCE_OF = {
    "cudart": "runtime.c",
    "cublasLt": "cublaslt.c",
    "cublas": "cublas.c",
    "cufft": "cufft.c",
    "cusolver": "cusolver.c",
    "cusparse": "cusparse.c",
    "cudnn": "cudnn.c",
    "nvrtc": "nvrtc.c",
}
_STAND_INS = ("cudart", "cublasLt", "cublas", "cufft", "cusparse", "cusolver")
_FOR_CUDNN = ("cublasLt", "nvrtc")
_FLAGS = ("-O2", "-fPIC", "-pthread", "-Wno-unused-parameter")
_FULL = os.strerror(errno.ENOSPC)
_SYMBOL = re.compile(r"^\S* ?[TWVDBR] (?P<name>[^@\s]+)", re.MULTILINE)
_DECLARED = re.compile(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(")
_VERSIONED = re.compile(r"#define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+_v\d)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class NullGpuLibraries:
    """Built libraries.

    Attributes:
        wheels: what they stand in front of.
        preload: their paths, in the order in which they must be loaded before torch.
    """

    wheels: CudaWheels
    preload: tuple[Path, ...]


def build_libraries(wheels: CudaWheels, cache: Path, *, compiler: str = "cc") -> NullGpuLibraries:
    """The libraries for `wheels`, from `cache` if it has them; building takes seconds.

    A folder of the cache is named after the sources, the compiler and the wheels. It appears whole or not at all.

    Raises:
        NullGpuError: there is no compiler or no `nm`, or compiling failed; says what it printed.
    """
    folder = _built(cache, wheels.libraries, compiler, lambda out: _Build(wheels, out, compiler).run())
    loaded = (wheels.libraries[name].name for name in (*_STAND_INS, "cudnn") if name in wheels.libraries)
    names = (DRIVER, NVML, *loaded)
    return NullGpuLibraries(wheels=wheels, preload=tuple(folder / name for name in names))


def build_for_cudnn(wheels: CudaWheels, cache: Path, *, compiler: str = "cc") -> tuple[Path, ...]:
    """What cuDNN alone needs of the null GPU to choose plans as on a device; to be loaded first, in this order.

    libcublasLt serves matrix products, libnvrtc and libcuda kernels that are compiled.

    Raises:
        NullGpuError: as `build_libraries`.
    """
    libraries = {name: path for name, path in wheels.libraries.items() if name in _FOR_CUDNN}
    folder = _built(cache, libraries, compiler, lambda out: _Build(wheels, out, compiler).run_for_cudnn())
    return (folder / DRIVER, *(folder / path.name for path in libraries.values()))


def check_compiler(compiler: str = "cc") -> None:
    """Raises NullGpuError unless there are a C compiler and `nm`."""
    for program in (compiler, "nm"):
        if shutil.which(program) is None:
            raise NullGpuError(
                f"the null GPU is compiled on first use, and there is no `{program}`", hint="install gcc"
            )


def _built(cache: Path, libraries: Mapping[str, Path], compiler: str, build: Callable[[Path], None]) -> Path:
    """The folder of `cache` for `libraries`, filled by `build` if it is not there; it appears whole or not at all."""
    check_compiler(compiler)
    folder = cache / _digest(compiler, libraries)
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as made:
        build(Path(made))
        try:
            Path(made).rename(folder)
        except OSError:
            if not folder.exists():  # another process was faster: its libraries are the same
                raise
        Path(made).mkdir(exist_ok=True)  # what the context manager removes
    return folder


def _digest(compiler: str, libraries: Mapping[str, Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    digest.update(subprocess.run([compiler, "--version"], capture_output=True, check=False).stdout)
    for name, path in sorted(libraries.items()):
        state = path.stat()
        digest.update(f"{name}\0{path}\0{state.st_size}\0{state.st_mtime_ns}".encode())
    return digest.hexdigest()[:24]


class _Build:
    """One build in `out`: each library is our functions, and a generated one for every other name it must export."""

    def __init__(self, wheels: CudaWheels, out: Path, compiler: str) -> None:
        self._wheels, self._out, self._compiler = wheels, out, compiler
        own = (
            ()
            if any((folder / "crt" / "host_defines.h").exists() for folder in wheels.includes)
            else (SOURCES / "compat",)
        )
        self._includes = [f"-I{folder}" for folder in (SOURCES, *wheels.includes, *own)]

    def run(self) -> None:
        self._driver()
        self._link(NVML, [self._compile("nvml.c")], [])
        for name in _STAND_INS:
            if name in self._wheels.libraries:
                self._stand_in(name)
        self._shim("cudnn")
        for library in (DRIVER, NVML):  # the names of packages for development, which some programs open first
            (self._out / library.removesuffix(".1")).symlink_to(library)
        self._clean()

    def run_for_cudnn(self) -> None:
        self._driver()
        for name in _FOR_CUDNN:
            if name in self._wheels.libraries:
                self._stand_in(name)
        self._clean()

    def _clean(self) -> None:
        for path in self._out.iterdir():
            if not path.name.startswith("lib") or path.suffix in (".o", ".s", ".map", ".c"):
                path.unlink()

    def _driver(self) -> None:
        objects = [self._compile(source) for source in ("device.c", "memory.c", "driver.c")]
        header = next((path for folder in self._wheels.includes if (path := folder / "cuda.h").exists()), None)
        if header is None:
            raise NullGpuError(
                "the CUDA wheels have no header `cuda.h`", hint="reinstall the nvidia-cuda-runtime wheel"
            )
        text = header.read_text()
        wanted = {*_DECLARED.findall(text), *_VERSIONED.findall(text)}
        self._link(DRIVER, [*objects, self._stubs(DRIVER, wanted - _defined(objects))], ["-ldl"])

    def _stand_in(self, name: str) -> None:
        real = self._wheels.libraries[name]
        ours = self._compile(_SOURCE_OF[name], f"-DCUDA_MAJOR={self._wheels.cuda_major}")
        others = _exported(real) - _defined([ours])
        self._link(real.name, [ours, self._stubs(real.name, others)], self._behind(real))

    def _shim(self, name: str) -> None:
        """Every function that is not ours jumps to the real library's, through a table that is filled at load time."""
        real = self._wheels.libraries[name]
        ours = self._compile(_SOURCE_OF[name])
        others = sorted(_exported(real) - _defined([ours]))
        jumps = self._out / f"{real.name}.s"
        lines = [".text"]
        for place, function in enumerate(others):
            lines += [
                f".globl {function}",
                f".type {function},@function",
                f"{function}: jmp *forwarded+{8 * place}(%rip)",
            ]
        lines += [".section .rodata", *(f'name{place}: .string "{function}"' for place, function in enumerate(others))]
        lines += [
            '.section .data.rel.local,"aw"',
            ".hidden forwarded_names",
            ".globl forwarded_names",
            "forwarded_names:",
        ]
        lines += [*(f".quad name{place}" for place in range(len(others))), ".quad 0"]
        lines += [".bss", ".hidden forwarded", ".globl forwarded", f"forwarded: .skip {8 * len(others) + 8}"]
        jumps.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
        loader = self._compile("forward.c", f'-DREAL_LIBRARY="{real}"')
        self._link(real.name, [ours, jumps, loader], ["-ldl", *self._behind(real)])

    def _compile(self, source: str, *flags: str) -> Path:
        made = self._out / f"{source}.o"
        self._call([*_FLAGS, *self._includes, *flags, "-c", "-o", str(made), str(SOURCES / source)])
        return made

    def _stubs(self, library: str, functions: Iterable[str]) -> Path:
        made = self._out / f"{library}.stubs.s"
        _write_stubs(made, functions)
        return made

    def _behind(self, real: Path) -> list[str]:
        # Symbols of the wheels' libraries carry one version named as the library; the loader checks it.
        versions = self._out / f"{real.name}.map"
        versions.write_text(f"{real.name} {{ global: *; }};\n")
        return [f"-Wl,--version-script={versions}"]

    def _link(self, name: str, parts: Sequence[Path], flags: Sequence[str]) -> None:
        driver = [] if name == DRIVER else [str(self._out / DRIVER), "-Wl,-rpath,$ORIGIN"]
        self._call(
            [
                "-shared",
                "-pthread",
                "-o",
                str(self._out / name),
                f"-Wl,-soname,{name}",
                *map(str, parts),
                *driver,
                *flags,
            ]
        )

    def _call(self, arguments: Sequence[str]) -> None:
        _compile([self._compiler, *arguments])


def _write_stubs(path: Path, functions: Iterable[str]) -> None:
    """Assembly in which each function passes its own name to `null_stub` and returns what that returns, 0."""
    lines = [".text"]
    names = sorted(functions)
    for place, name in enumerate(names):
        lines += [f".globl {name}", f".type {name},@function"]
        lines += [f"{name}: leaq name{place}(%rip),%rdi", " jmp null_stub@PLT"]
    lines += [".section .rodata", *(f'name{place}: .string "{name}"' for place, name in enumerate(names))]
    path.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))


def _compile(command: Sequence[str]) -> None:
    environment = {
        key: value for key, value in os.environ.items() if key not in ("CPATH", "C_INCLUDE_PATH", "LD_PRELOAD")
    }
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise NullGpuError(f"`{command[0]}` cannot build the null GPU: {error}") from error
    if done.returncode:
        # What the linker says precedes the compiler's `collect2: error`, which says nothing.
        lines = [line for line in done.stderr.splitlines() if "collect2:" not in line]
        full = next((line for line in lines if _FULL in line), None)
        why = full or next((line for line in lines if "error" in line), "\n".join(lines)[-300:])
        hint = "set `XDG_CACHE_HOME` to a folder with some free MiB" if full else None
        raise NullGpuError(f"`{command[0]}` cannot build the null GPU: {why}", hint=hint)


def _defined(objects: Sequence[Path]) -> set[str]:
    return _names(["--defined-only", "--extern-only", *map(str, objects)])


def _exported(library: Path) -> set[str]:
    found = _names(["-D", "--defined-only", str(library)])
    return {name for name in found if name != library.name and not name.startswith(("_init", "_fini"))}


def _names(arguments: Sequence[str]) -> set[str]:
    done = subprocess.run(["nm", *arguments], capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise NullGpuError(f"`nm` cannot read the libraries: {done.stderr.strip()[-300:]}")
    return {match["name"] for match in _SYMBOL.finditer(done.stdout)}
