"""Parts of problems: their names in files, and capabilities lost when a formula changes.

Activations, linear maps, operators and data terms are parts. A part has formulas, and may state
further facts: that its derivative is a ramp, say, which lets a GPU run it in a kernel. These
statements are its capabilities.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

PARTS: dict[str, type[ProblemPart]] = {}
"""The classes that files may name; ``class ReLU(Activation, name="ReLU")`` registers itself."""
ADAPTING = {"__call__", "__getattribute__", "__new__"}
"""Special methods that change the result of a formula; others, such as ``__init__``, do not."""
HARMLESS = {"extra_repr"}


class ProblemPart:
    """A part of problems.

    A subclass with ``name="..."`` can be named in files: reading a file creates objects of such
    classes only, from checked arguments.

    A subclass that changes a formula, or anything else that is not a capability, loses the
    capabilities that it would inherit, unless it states them itself: facts about
    1/2 (w - y)^2 need not hold for another ``density``.

    Attributes:
        part_name: the name in files, or None.
        capabilities: the names of all capabilities, each with its default in the base class.
    """

    part_name: ClassVar[str | None] = None
    capabilities: ClassVar[frozenset[str]] = frozenset({"part_name", "arguments"})

    def __init_subclass__(cls, *, name: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        for capability in cls.capabilities:
            owner, *others = (base for base in cls.__mro__ if capability in vars(base))
            if others and overridden(cls, owner):
                setattr(cls, capability, vars(others[-1])[capability])
        if name is not None:
            cls._register(name)

    @classmethod
    def _register(cls, name: str) -> None:
        other = PARTS.get(name)
        # A class may replace itself: notebooks execute definitions again.
        if other and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(
                f"name={name!r} is taken by {other.__module__}.{other.__qualname__}; choose "
                f"another name for {cls.__qualname__}"
            )
        PARTS[name] = cls
        cls.part_name = name

    def arguments(self) -> dict[str, Any]:
        """The constructor arguments that recreate this part, as files hold them.

        By default, attributes with the names of the arguments of the registered class.
        """
        assert self.part_name is not None
        found = inspect.signature(PARTS[self.part_name]).parameters.values()
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {p.name: getattr(self, p.name) for p in found if p.kind not in several}


def overridden(kind: type, base: type) -> list[str]:
    """Attributes that ``kind`` and bases up to ``base`` replace, except capabilities and fields.

    Supplying an abstract method replaces nothing, and defaults of fields are not formulas.
    """
    free = HARMLESS | getattr(base, "capabilities", frozenset())
    free |= set(getattr(base, "__dataclass_fields__", ()))
    found = set()
    for i, cls in enumerate(kind.__mro__):
        if cls in base.__mro__:
            continue
        for name in set(vars(cls)) - free:
            if name in ADAPTING or not name.startswith(("__", "_abc_")):
                before = next(
                    (vars(c)[name] for c in kind.__mro__[i + 1 :] if name in vars(c)), None
                )
                if before is not None and not getattr(before, "__isabstractmethod__", False):
                    found.add(name)
    return sorted(found)


def known_parts(kind: type) -> dict[str, type[ProblemPart]]:
    """The classes of a kind that files may name, in alphabetical order."""
    return {name: part for name, part in sorted(PARTS.items()) if issubclass(part, kind)}


def require_positive(owner: object, **values: float) -> None:
    """Raise ValueError unless all values, arguments of ``owner``, are positive and finite."""
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{type(owner).__name__} needs {name} > 0, got {name}={value}")


def require_increasing(owner: object, **values: Sequence[float]) -> None:
    """Raise ValueError unless each value is a sequence of positive, increasing numbers."""
    for name, each in values.items():
        if not each or not all(a < b for a, b in itertools.pairwise((0.0, *each, math.inf))):
            raise ValueError(
                f"{type(owner).__name__} needs {name} that are positive and increase, got "
                f"{name}={tuple(each)}"
            )


def require_at_least(least: int, **values: float) -> None:
    """Raise ValueError for a value below ``least``."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
