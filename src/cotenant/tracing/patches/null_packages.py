"""Packages that only report: where the job's Python lacks one, a null object takes its calls.

Loggers, experiment trackers and what notebooks show or mount hold no GPU memory, and the machine that estimates often
lacks them. A script that
handles their absence keeps its own way: `trace_script` names a package here only after its import has ended a run.

Values of a null object may be printed, compared by identity, called and nested. Whatever a script computes with, such
as `wandb.config.batch_size`, is not known: it raises `ModuleNotFoundError`.
"""

from __future__ import annotations

import importlib.abc
import importlib.metadata
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, NoReturn

from cotenant.tracing import script_location


def _same_text(text: object = "", *args: object, **kwargs: object) -> object:
    return text


def _no_shell() -> None:
    """IPython's answer outside a notebook, which libraries ask for, too."""


def _no_cost(*args: object, **kwargs: object) -> tuple[float, float]:
    """FLOPs and parameters, of THOP's `profile`."""
    return 0.0, 0.0


def _no_costs(numbers: Iterable[object], *args: object, **kwargs: object) -> list[str]:
    """THOP's `clever_format`: one text for each number."""
    return ["0" for _ in numbers]


_KNOWN: Mapping[str, Mapping[str, Any]] = {
    "aim": {}, "clearml": {}, "codecarbon": {}, "colorama": {}, "coloredlogs": {}, "comet_ml": {}, "dominate": {},
    "dvclive": {}, "google": {}, "google.colab": {}, "ipywidgets": {}, "kaggle_secrets": {}, "mlflow": {},
    "neptune": {}, "progress": {}, "pyvirtualdisplay": {}, "setproctitle": {}, "swanlab": {}, "tensorboardX": {},
    "tensorboard": {}, "tensorboard_logger": {}, "tensorflow": {}, "trackio": {}, "visdom": {}, "wandb": {},
    "IPython": {"get_ipython": _no_shell, "version_info": (9, 0, 0)},
    "termcolor": {"colored": _same_text, "cprint": _same_text},
    "thop": {"profile": _no_cost, "clever_format": _no_costs},
}  # fmt: skip
"""By package: values that scripts compute with. TensorFlow is there for its summaries; reading data with it raises.
`google` is missing where a notebook of Colab is not there and no other package of that name is. Matplotlib asks for the
version of an IPython that is imported, and does its work itself from 8.24 on: matplotlib/pyplot.py."""

_TEXTS = ("google.colab.userdata.get", "kaggle_secrets.UserSecretsClient().get_secret")
"""Functions that return a text, a secret: notebooks put it into the environment, which takes nothing else."""

_READERS = {"tensorboard": ("torch.utils.tensorboard",)}
"""Modules of libraries that are there for one package alone, and are replaced with it."""


def replaceable(error: BaseException) -> str | None:
    """The package that is missing, if a null object can take its calls."""
    if not isinstance(error, ModuleNotFoundError):
        return None
    return error.name if error.name in _KNOWN else None


def provide(packages: Iterable[str]) -> None:
    """Let a script import these packages from now on, where nothing else provides them."""
    wanted = frozenset(packages)
    if wanted:
        sys.meta_path.append(_NullFinder(wanted, _is_imported_by_script))
    readers = frozenset(name for package in wanted for name in _READERS.get(package, ()))
    if readers:
        sys.meta_path.insert(0, _NullFinder(readers, lambda: True))


def provided() -> list[str]:
    """Packages for which null objects stand in this process."""
    finders = (finder for finder in sys.meta_path if isinstance(finder, _NullFinder))
    return sorted({name for finder in finders for name in finder.names})


def warning_for(package: str) -> str:
    """What to say of a trace in which a null object stood for `package`."""
    return f"`{package}` is not installed: its calls did nothing in this trace"


class Null:
    """Takes any call, attribute and item, and returns the like. `_path` says what it stands for."""

    def __init__(self, path: str) -> None:
        vars(self)["_path"] = path

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy`, `inspect` and NumPy look for protocols by such names
            raise AttributeError(name)
        return Null(f"{self._path}.{name}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # As a decorator: the function or class below it is the script's own.
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            return args[0]
        return "secret" if self._path in _TEXTS else Null(f"{self._path}()")

    def __setattr__(self, name: str, value: object) -> None:
        return

    def __getitem__(self, key: object) -> Any:
        return Null(f"{self._path}[{key!r}]")

    def __setitem__(self, key: object, value: object) -> None:
        return

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        return

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return ""

    def __format__(self, spec: str) -> str:
        return ""

    def __add__(self, other: object) -> Any:
        """Of texts, such as colors of a terminal; of numbers it raises."""
        return other if isinstance(other, str) else self._unknown()

    __radd__ = __add__

    def _unknown(self, *args: object) -> NoReturn:
        package = self._path.partition(".")[0]
        message = f"`{package}` is not installed, and the value of `{self._path}` is needed"
        raise ModuleNotFoundError(message, name=package)

    __iter__ = __len__ = __index__ = __int__ = __float__ = __array__ = _unknown
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _unknown
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _unknown


class _NullModule(types.ModuleType):
    """A package or a module of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        vars(self).update(_KNOWN.get(name, {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Null(f"{self.__name__}.{name}")


class _NullDistribution(importlib.metadata.Distribution):
    """What `importlib.metadata` knows of a package: a name, and version 0."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        """The file `METADATA`; there is no other."""
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: 0\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        """A place where nothing is."""
        return Path(path)


class _NullFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules and everything below them, where `may_find` agrees to the import that is at work."""

    def __init__(self, names: frozenset[str], may_find: Callable[[], bool]) -> None:
        self.names = names
        self._may_find = may_find

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        is_ours = any(f"{fullname}.".startswith(f"{name}.") for name in self.names)
        if is_ours and self._may_find():
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        """Of a script that prints the versions of its packages: importlib.metadata, `MetadataPathFinder`."""
        name = getattr(context, "name", None)
        return [_NullDistribution(name)] if name in self.names and self._may_find() else []

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return _NullModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return


def _is_imported_by_script() -> bool:
    """Whether an `import` of the script's own files is at work.

    Libraries that look whether a package is there, by `importlib.util.find_spec` or otherwise, find none.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_machinery(frame.f_code.co_filename):
        frame = frame.f_back
    return script_location.is_user_file(frame.f_code.co_filename)


def _is_machinery(path: str) -> bool:
    if path.startswith(("<frozen importlib._bootstrap", script_location.PACKAGE_DIR)):
        return True
    return Path(path).parts[-2:] == ("importlib", "__init__.py") or Path(path).parts[-3:-1] == ("importlib", "metadata")
