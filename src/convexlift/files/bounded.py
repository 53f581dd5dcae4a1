"""Files for decoders that read as many bytes as a header declares.

Python allocates all bytes that are asked for before it notices that a file has fewer. Here, at most
the rest of the file is asked for.
"""

from __future__ import annotations

import io
import os
from pathlib import Path


class BoundedReader(io.BufferedReader):
    """A file opened for reading whose ``read`` never allocates more than is left of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._length = os.fstat(self.fileno()).st_size

    def read(self, size: int | None = -1, /) -> bytes:
        """At most ``size`` bytes."""
        left = max(self._length - self.tell(), 0)
        return super().read(left if size is None or size < 0 else min(size, left))
