"""Python functions with the type of a built-in one.

Scripts distinguish built-in functions from their own by the type: in repositories that give `print` more arguments,
`type(print) != type(open)` means that it was replaced. A Python function in the place of `open` would mean so in every
script. CPython has no way to make one in Python, so it is made as extension modules make theirs.
Source: CPython, Include/methodobject.h, `PyMethodDef`; Objects/methodobject.c, `PyCFunction_NewEx`.
A module of its own: nothing else here uses ctypes on Python's objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_VARARGS, _KEYWORDS = 1, 2


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_definitions: list[_MethodDefinition] = []  # CPython holds their addresses for as long as the functions live


def as_builtin(function: Callable[..., Any], original: Any) -> Any:
    """A built-in function that calls `function`, with the name, signature and documentation of `original`.

    `function` itself where there is no such interface (not CPython).
    """
    api = getattr(ctypes, "pythonapi", None)
    if api is None or not hasattr(api, "PyCFunction_NewEx"):
        return function
    signature = getattr(original, "__text_signature__", None) or "(*args, **kwargs)"
    definition = _MethodDefinition(
        name=original.__name__.encode(),
        # Called as `PyObject_Call(self, args, kwargs)`, where self is `function`: it has the arguments that the flags
        # below promise to a method.
        function=ctypes.cast(api.PyObject_Call, ctypes.c_void_p).value,
        flags=_VARARGS | _KEYWORDS,
        doc=f"{original.__name__}{signature}\n--\n\n{original.__doc__ or ''}".encode(),
    )
    _definitions.append(definition)
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)(
        ("PyCFunction_NewEx", api)
    )
    return make(ctypes.addressof(definition), function, str(original.__module__))
