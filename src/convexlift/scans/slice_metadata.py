"""Where slices are, as the JSON text inside TIFF and PNG files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from convexlift.scans.volumes import Orientation, Vector, Volume

FORMAT = "convexlift CT slices"


@dataclass(frozen=True)
class Places:
    """A volume without its values, and how numbers of a file become HU.

    Attributes:
        spacing: as in ``Volume``.
        positions: as in ``Volume``.
        orientation: as in ``Volume``.
        thickness: as in ``Volume``.
        slope: HU = slope * stored + intercept.
        intercept: see ``slope``.
        clipped: pixels whose CT numbers were outside of the window that was written.
    """

    spacing: tuple[float, float]
    positions: tuple[Vector, ...]
    orientation: Orientation
    thickness: float | None
    slope: float = 1.0
    intercept: float = 0.0
    clipped: int = 0

    @classmethod
    def of(cls, volume: Volume, slices: Iterable[int], **scale: Any) -> Places:
        """Those of some slices of a volume."""
        positions = tuple(volume.positions[k] for k in slices)
        return cls(volume.spacing, positions, volume.orientation, volume.thickness, **scale)

    def to_text(self) -> str:
        """JSON in ASCII."""
        return json.dumps({"format": FORMAT, **vars(self)})

    @classmethod
    def from_text(cls, text: str | None) -> Places | None:
        """What was written here, or None for the text of another program."""
        try:
            record = json.loads(text or "")
        except ValueError:
            return None
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            return None
        try:
            thickness = record["thickness"]
            return cls(
                spacing=cast(tuple[float, float], tuple(map(float, record["spacing"]))),
                positions=tuple(cast(Vector, tuple(map(float, p))) for p in record["positions"]),
                orientation=cast(Orientation, tuple(map(float, record["orientation"]))),
                thickness=None if thickness is None else float(thickness),
                slope=float(record["slope"]),
                intercept=float(record["intercept"]),
                clipped=int(record["clipped"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its description of the slices is damaged ({error!r})") from None
