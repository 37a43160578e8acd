"""Run-time checks of the shapes and dtypes that annotations in ``fedran.core`` state.

``install`` must run before the core is imported. Every function of the core with an annotation
such as ``Float[Array, "n M"]`` then checks its arguments and its result. Other annotations are
left alone, because many tests pass values of a wrong type on purpose and expect our own message.
Constructors are left alone too: they check shapes themselves.
"""

from __future__ import annotations

import re
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder, SourceFileLoader
from types import FunctionType
from typing import Any, get_args

import jaxtyping
from beartype import beartype

STATES_SHAPE = re.compile(r"\b(Bool|Float|Float32|Float64|Int64)\[")
PACKAGE = "fedran.core"


def install() -> None:
    """Check the arrays of all modules of the core that are imported from now on."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, fullname, path=None, target=None):
        spec = None
        if fullname.startswith(PACKAGE + "."):
            spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        for name, found in list(vars(module).items()):
            if getattr(found, "__module__", None) != module.__name__:
                continue
            if isinstance(found, FunctionType):
                setattr(module, name, checked(found))
            elif isinstance(found, type):
                for key, member in list(vars(found).items()):
                    wrapped = _checked_member(member)
                    if wrapped is not member:
                        setattr(found, key, wrapped)


def _checked_member(member):
    if isinstance(member, FunctionType) and member.__name__ != "__init__":
        return checked(member)
    if isinstance(member, classmethod):
        return classmethod(checked(member.__func__))
    if isinstance(member, property) and states_shape(member.fget):
        return property(checked(member.fget), doc=member.__doc__)
    return member


def checked(function):
    """The function, checking the arrays in its arguments and its result where it states shapes."""
    if not states_shape(function):
        return function
    return jaxtyping.jaxtyped(function, typechecker=_check_shapes_only)


def states_shape(function) -> bool:
    """Whether any annotation of the function states a shape."""
    return any(STATES_SHAPE.search(str(hint)) for hint in function.__annotations__.values())


def _check_shapes_only(function):
    hints = function.__annotations__
    function.__annotations__ = {k: v if _is_shape(v) else Any for k, v in hints.items()}
    return beartype(function)


def _is_shape(hint) -> bool:
    if isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray):
        return True
    return any(_is_shape(part) for part in get_args(hint))
