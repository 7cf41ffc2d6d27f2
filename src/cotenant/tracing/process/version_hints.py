"""What to do about errors of a script that is for another version of a package, or of Python.

Repositories are years old: names, arguments and behavior of the packages that they use have changed
since. The hint names the installed version, of the package to which the failing name belongs, or of the one that is
known by the words of its error.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import traceback
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cotenant.tracing import script_location

_CALL_ERRORS = re.compile(
    r"([\w.]+)\(\) (?:got an unexpected keyword argument '\w+'|missing \d+ required|takes (?:from )?\d+|takes no )"
)
"""Of calls that do not fit the function. Source: Python/ceval.c, `missing_arguments`, `too_many_positional`."""
_OUTER_ATTRIBUTES = 4  # of a call: `torch.optim.lr_scheduler.StepLR`
_OTHER_BEHAVIOR = (
    ("torch", re.compile(r"invalid index of a 0-dim tensor")),
    ("torch", re.compile(r"Subtraction, the `-` operator, with (?:a|two) bool tensor")),
    ("torch", re.compile(r"expected predicate to be bool, got|only supports boolean masks")),
    ("torch", re.compile(r"Legacy autograd function with non-static forward method is deprecated")),
    ("torch", re.compile(r"result type \w+ can't be cast to the desired output type")),
    ("torch", re.compile(r"has been modified by an inplace operation")),
    ("torch", re.compile(r"view size is not compatible with input tensor's size and stride|Cannot view a tensor with")),
    ("torch", re.compile(r"stft requires the return_complex parameter")),
    ("torch", re.compile(r"Mismatch in shape: grad_output\[\d+\] has a shape of torch\.Size\(\[1\]\)")),
    ("torch", re.compile(r"Weights only load failed")),
    ("torch", re.compile(r"DataLoaderIter' object has no attribute 'next'")),
    ("numpy", re.compile(r"setting an array element with a sequence\. The requested array has an inhomogeneous")),
    ("numpy", re.compile(r"Unable to avoid copy while creating an array as requested")),
    ("pillow", re.compile(r"'(?:ImageDraw|FreeTypeFont)' object has no attribute '(?:textsize|getsize)'")),
)
"""Distributions of whose versions the older ones did otherwise, and the words of what the newer ones raise."""
_REMOVED_MODULES = frozenset(
    ("asynchat", "asyncore", "cPickle", "cgi", "ConfigParser", "cStringIO", "distutils", "imp", "pipes", "Queue",
     "SocketServer", "StringIO", "Tkinter", "urllib2", "urlparse", "xdrlib")
)  # fmt: skip
"""Of the standard library of Python 2, or before 3.13."""
_OF_DATA = ("torch.utils.data", "cotenant")
"""Modules whose constructors may reject what was made up, or what the tracer gives."""
_PYTHON = "Python {} runs the script: is it for another version? `--python PATH` names the job's own"


def hint_for(error: BaseException) -> str | None:
    """The hint; None for an error of another kind."""
    if isinstance(error, ModuleNotFoundError):
        return _module_hint(error)
    if isinstance(error, (ImportError, AttributeError)) and (hint := _name_hint(error)):
        return hint
    if isinstance(error, TypeError) and (found := _CALL_ERRORS.search(str(error))):
        return _call_hint(error, found[1])
    for distribution, words in _OTHER_BEHAVIOR:
        if words.search(str(error)):
            return _other_version(distribution)
    return _rejected_hint(error) if isinstance(error, (TypeError, ValueError)) else None


def _module_hint(error: ModuleNotFoundError) -> str | None:
    """About a module that another Python has, or that Python 2 finds beside the file that imports it."""
    name = (error.name or "").partition(".")[0]
    if name in _REMOVED_MODULES:
        return _python()
    importing = next((frame for frame in _script_frames(error)), None)
    if importing is None or not name:
        return None
    beside = Path(importing.f_code.co_filename).parent
    found = next((path for path in (beside / f"{name}.py", beside / name / "__init__.py") if path.is_file()), None)
    if found is None or str(beside) in sys.path:
        return None
    return f"`{found}` lies beside the file that imports it, where Python 2 looked for it; {_python()}"


def _name_hint(error: ImportError | AttributeError) -> str | None:
    """Which version of the package, or of Python, that lacks a name is installed; None where neither lacks one."""
    module = error.name if isinstance(error, ImportError) else getattr(error.obj, "__name__", None)
    package = (module or "").partition(".")[0]
    if not package or not (isinstance(error, ImportError) or isinstance(error.obj, types.ModuleType)):
        return None
    return _python() if package in sys.stdlib_module_names else _installed(package)


def _call_hint(error: TypeError, function: str) -> str | None:
    """Which version of a package is installed whose function was called otherwise; None for one of the script alone.

    `function`: its qualified name. The innermost frame is the one that calls it.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    owner = function.partition(".")[0]
    for value in _called_names(frame):
        named = value.__mro__ if isinstance(value, type) else (value,) if isinstance(value, types.FunctionType) else ()
        found = next((item for item in named if item.__name__ == owner), None)
        if found is not None:
            return _owner_hint(found, function.rpartition(".")[2])
    return None


def _owner_hint(owner: Any, method: str) -> str | None:
    """Of the package of a function or class, or of its first base in one: a data class has its base's arguments too."""
    for base in owner.__mro__ if isinstance(owner, type) else (owner,):
        code = getattr(vars(base).get(method), "__code__", None)
        if code is not None and script_location.is_user_file(code.co_filename):  # the script's own
            return None
        if hint := _installed(str(base.__module__).partition(".")[0]):
            return hint
    return None


def _called_names(frame: types.FrameType) -> Iterator[Any]:
    """Values that the names in a frame may stand for, also as attributes of modules: `torch.optim.SGD`."""
    values = [*frame.f_locals.values(), *frame.f_globals.values()]
    yield from values
    names = frame.f_code.co_names
    modules = [value for value in values if isinstance(value, types.ModuleType)]
    for _ in range(_OUTER_ATTRIBUTES):
        found = [vars(module)[name] for module in modules for name in names if name in vars(module)]
        yield from found
        modules = [value for value in found if isinstance(value, types.ModuleType)]


def _rejected_hint(error: BaseException) -> str | None:
    """Which version is installed of a package whose constructor does not take the values that the script gives."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [index for index, frame in enumerate(frames) if script_location.is_user_file(frame.f_code.co_filename)]
    called = frames[own[-1] + 1 :] if own else []
    module = str(called[-1].f_globals.get("__name__", "")) if called else ""
    if not called or called[-1].f_code.co_name != "__init__" or module.startswith(_OF_DATA):
        return None
    return _installed(module.partition(".")[0])


def _script_frames(error: BaseException) -> Iterator[types.FrameType]:
    """Frames of the script's own files, from the innermost outwards."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return (frame for frame in reversed(frames) if script_location.is_user_file(frame.f_code.co_filename))


def _python() -> str:
    return _PYTHON.format(".".join(map(str, sys.version_info[:2])))


def _installed(package: str) -> str | None:
    """The hint that names the installed version of a package; None where it is not one."""
    names = importlib.metadata.packages_distributions().get(package, [])
    return _other_version(names[0]) if names else None


def _other_version(distribution: str) -> str | None:
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
    return (
        f"{distribution} {version} is installed: is the script for another version? `--python PATH` names the job's own"
    )
