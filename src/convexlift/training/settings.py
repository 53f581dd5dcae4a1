"""Settings as plain values: what a run was started with, for checkpoints and cards.

Records become mappings with their class under "kind"; tensors and sets of images become a
fingerprint, which is equal for equal ones only. Of other objects only the class is kept.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from convexlift.training.data import ImageSet


def plain_settings(value: Any) -> Any:
    """A record, and all in it, as what JSON can say."""
    if isinstance(value, ImageSet):
        return {"images": len(value), "sha256": value.fingerprint()}
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().contiguous().numpy()
        return {"shape": list(value.shape), "sha256": hashlib.sha256(numbers.data).hexdigest()}
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: plain_settings(getattr(value, each.name)) for each in fields(value)}
        return {"kind": type(value).__name__, **named}
    if isinstance(value, Mapping):
        return {str(key): plain_settings(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_settings(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return type(value).__name__


def by_place(value: Any, place: str) -> dict[str, str]:
    """Plain settings without their nesting: ``{"options.steps": "20", ...}``."""
    if isinstance(value, Mapping):
        items = [(f"{place}.{key}", item) for key, item in value.items()]
    elif isinstance(value, list):
        items = [(f"{place}[{i}]", item) for i, item in enumerate(value)]
    else:
        return {place: str(value)}
    return {name: text for at, item in items for name, text in by_place(item, at).items()}
