"""JSON values as the arguments of constructors, checked against their type hints.

``construct(Kind, content, place)`` is ``Kind(**content)``, where every value has the type that the
signature of ``Kind`` requires, no key is unknown and none is missing. An error is a ValueError that
names the place, as in ``layers[0].skip``. Written by hand, since models must load where only torch,
numpy and safetensors are installed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")

Make = Callable[[Any, type[Any], str], Any]
"""(value, class, place) -> an object of the class, for hints that are library classes."""

_ANYTHING = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
_SCALARS: dict[Any, tuple[str, type[Any]]] = {
    bool: ("true or false", bool),
    int: ("a whole number", Integral),
    float: ("a finite number", Real),
    str: ("a string", str),
    type(None): ("null", type(None)),
}


def _parameters(kind: type[Any]) -> Mapping[str, inspect.Parameter]:
    found = inspect.signature(kind).parameters
    if {parameter.kind for parameter in found.values()} == _ANYTHING:
        return {}  # nn.Module and the like, whose constructors accept and ignore all arguments
    hints = typing.get_type_hints(kind if dataclasses.is_dataclass(kind) else kind.__init__)
    return {name: each.replace(annotation=hints.get(name, Any)) for name, each in found.items()}


# Cached, since a network of a thousand layers asks for the same few classes.
parameters: Callable[[type[Any]], Mapping[str, inspect.Parameter]]
parameters = typing.cast(Any, functools.lru_cache(maxsize=256)(_parameters))
"""The parameters of a class's constructor, with their type hints as annotations."""


def finite(value: Any) -> Any:
    """None in place of NaN and infinities, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def construct(
    kind: type[T],
    content: Any,
    place: str,
    make: Make | None = None,
    *,
    make_for: Mapping[str, Make] | None = None,
    fixed: Mapping[str, Any] | None = None,
) -> T:
    """``kind(**content)``, with every value checked.

    Args:
        kind: the class.
        content: its arguments by name; one that has a default may be missing.
        place: the place of the content, for error messages.
        make: makes the objects among the arguments.
        make_for: another ``make`` for some of the arguments.
        fixed: further arguments, which the content must not name.
    """
    fixed = fixed or {}
    known = {name: each for name, each in parameters(kind).items() if name not in fixed}
    if not isinstance(content, Mapping):
        raise ValueError(f"{place} must be an object with {listed(known)}, got {content!r}")
    if unknown := [str(key) for key in content if key not in known]:
        raise ValueError(f"{place} has no field {listed(unknown)}; its fields are {listed(known)}")
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in known.items():
        many = parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if name in content:
            hint = Sequence[parameter.annotation] if many else parameter.annotation  # type: ignore[name-defined]
            value = read(content[name], hint, f"{place}.{name}", (make_for or {}).get(name, make))
            positional += value if many else ()
            named |= {} if many else {name: value}
        elif parameter.default is inspect.Parameter.empty and not many:
            raise ValueError(f"{place} lacks the field {name}")
    try:
        return kind(*positional, **named, **fixed)
    except (ValueError, TypeError, RuntimeError, ArithmeticError, MemoryError) as error:
        message = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(message if message.startswith(place) else f"{place}: {message}") from None


def read(value: Any, hint: Any, place: str, make: Make | None = None) -> Any:
    """``value`` as the type ``hint``; ValueError names the place where the type is wrong."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return plain(value, place)
    if origin in (Union, types.UnionType):
        return _read_union(value, arguments, place, make)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{place} must be one of {listed(arguments)}, got {value!r}")
        return value
    if isinstance(origin, type) and issubclass(origin, tuple | Sequence):
        return _read_sequence(value, origin, arguments, place, make)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"{place} must be an object, got {value!r}")
        return {
            _key(key, arguments[0], place): read(item, arguments[1], f"{place}.{key}", make)
            for key, item in value.items()
        }
    if hint in _SCALARS:
        return _read_scalar(value, hint, place)
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    if make is None:
        raise ValueError(f"{place} must be {hint}, got {value!r}")
    return make(value, hint, place)


def plain(value: Any, place: str) -> Any:
    """A JSON value, with lists for tuples; ValueError for anything else and for NaN."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            raise ValueError(f"{place} must be finite, got {value}")
        return float(value)
    if isinstance(value, Mapping):
        return {_key(key, str, place): plain(item, f"{place}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{place}[{i}]") for i, item in enumerate(value)]
    raise ValueError(
        f"{place} must be a number, a string, a list or an object, got a {type(value).__name__}"
    )


def listed(names: Iterable[Any]) -> str:
    """The names, separated by commas."""
    return ", ".join(map(str, names)) or "none"


def _read_scalar(value: Any, hint: Any, place: str) -> Any:
    words, accepted = _SCALARS[hint]
    # True is an Integral to Python, but not a count; NaN is a Real, but not a finite number.
    wrong_bool = isinstance(value, bool) and hint is not bool
    if (
        not isinstance(value, accepted)
        or wrong_bool
        or (hint is float and not math.isfinite(value))
    ):
        raise ValueError(f"{place} must be {words}, got {value!r}")
    return value if value is None else hint(value)


def _read_union(value: Any, choices: tuple[Any, ...], place: str, make: Make | None) -> Any:
    others = [choice for choice in choices if choice is not type(None)]
    if value is None and len(others) < len(choices):
        return None
    for choice in others[:-1]:
        try:
            return read(value, choice, place, make)
        except ValueError:
            continue
    return read(value, others[-1], place, make)


def _read_sequence(
    value: Any, origin: type[Any], arguments: tuple[Any, ...], place: str, make: Make | None
) -> Any:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{place} must be a list, got {value!r}")
    fixed_length = issubclass(origin, tuple) and arguments[-1] is not Ellipsis
    if fixed_length and len(value) != len(arguments):
        raise ValueError(f"{place} must have {len(arguments)} entries, got {list(value)!r}")
    hints = arguments if fixed_length else arguments[:1] * len(value)
    pairs = enumerate(zip(value, hints, strict=True))
    items = [read(item, hint, f"{place}[{i}]", make) for i, (item, hint) in pairs]
    return tuple(items) if issubclass(origin, tuple) else items


def _key(key: Any, hint: Any, place: str) -> Any:
    try:
        if hint is int:
            return int(key)
    except (TypeError, ValueError):
        raise ValueError(f"{place} must have integers as keys, got {key!r}") from None
    if not isinstance(key, str):
        raise ValueError(f"{place} must have strings as keys, got {key!r}")
    return key
