"""Public names of a package, imported on first use.

A package lists its names once, in a stub ``__init__.pyi`` that type checkers and editors also
read, and its ``__init__.py`` contains

    __getattr__, __dir__, __all__ = lazy_names(__name__)

as proposed in SPEC 1 of Scientific Python.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, adapters: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, from its stub.

    The stub consists of lines ``from MODULE import NAME as NAME``. Modules of the package are
    attributes as well, whether or not the stub names them. ``adapters`` are modules named like the
    library that they need: ``dir`` lists them where it is installed.
    """
    module = sys.modules[package]
    loader: Any = module.__loader__  # for folders, zip files, ...; all have get_data
    stub = ast.parse(loader.get_data(str(Path(str(module.__file__)).with_suffix(".pyi"))))
    origins = {
        alias.name: statement.module
        for statement in stub.body
        if isinstance(statement, ast.ImportFrom) and statement.module is not None
        for alias in statement.names
    }

    def get(name: str) -> Any:
        origin, submodule = origins.get(name, package), f"{package}.{name}"
        if origin != package:
            value = getattr(importlib.import_module(origin), name)
        elif not name.startswith("_") and _is_module(submodule):
            value = importlib.import_module(submodule)
        else:
            near = difflib.get_close_matches(name, origins, n=1)
            hint = f". Did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
        setattr(module, name, value)  # later accesses bypass this function
        return value

    def names() -> list[str]:
        # Without modules that happen to be imported: they are not public names.
        special = {name for name in vars(module) if name.startswith("__")}
        return sorted({*origins, *special, *filter(_is_installed, adapters)})

    return get, names, sorted(origins)


def _is_installed(name: str) -> bool:
    return name in sys.modules or find_spec(name) is not None


def _is_module(name: str) -> bool:
    spec = find_spec(name)
    return spec is not None and spec.origin is not None  # folders of data have no origin
