"""TIFF files, opened with the sizes in their headers checked."""

from __future__ import annotations

import contextlib
import html
import logging
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convexlift.files.bounded import BoundedReader
from convexlift.files.limits import EXPANSION, require_plausible

_UNCOMPRESSED = 1
_SILENCE = logging.NullHandler()


def tifffile_module(path: Path) -> Any:
    """The module ``tifffile``, or an error that says how to get it."""
    try:
        import tifffile
    except ImportError:
        raise ImportError(
            f'{path} needs tifffile: pip install "convexlift[cli]", or save it as PNG or NPY'
        ) from None
    # Its remarks on odd tags would appear on the terminal; errors here say what matters.
    logging.getLogger("tifffile").addHandler(_SILENCE)
    return tifffile


@contextlib.contextmanager
def open_tiff(path: Path, max_megapixels: float | None = None) -> Iterator[Any]:
    """A ``tifffile.TiffFile`` whose pages are not too large to be read."""
    tifffile = tifffile_module(path)
    with BoundedReader(path) as content, tifffile.TiffFile(content) as file:
        # The first page is checked alone, since finding the series already works with its size.
        _require_page(path, file.pages.first, max_megapixels)
        _require_end(file)
        _require_ome(path, file, max_megapixels)
        levels = [level for series in file.series for level in series.levels]
        for level in levels:
            _require_page(path, level.keyframe, max_megapixels)
        if not levels:
            raise ValueError("it has no pages; copy or export it again")
        compressed = any(int(level.keyframe.compression) != _UNCOMPRESSED for level in levels)
        require_plausible(
            path,
            (sum(math.prod(level.shape) for level in levels),),
            min(_itemsize(level.keyframe) for level in levels),
            max_megapixels,
            EXPANSION if compressed else 1.0,
        )
        yield file


def _require_end(file: Any) -> None:
    """Raise if the pages, each of which says where the next one is, form a loop without an end."""
    tiff, content = file.tiff, file.filehandle
    seen: set[int] = set()
    offset = file.pages.first.offset
    while 0 < offset < content.size:
        if offset in seen:
            raise ValueError("its pages form a loop; copy or export it again")
        seen.add(offset)
        content.seek(offset)
        head = content.read(tiff.tagnosize)
        count = struct.unpack(tiff.tagnoformat, head)[0] if len(head) == tiff.tagnosize else 0
        entries = content.read(count * tiff.tagsize + tiff.offsetsize)
        if len(entries) < tiff.offsetsize:
            return  # cut short, which tifffile notices
        (offset,) = struct.unpack(tiff.offsetformat, entries[-tiff.offsetsize :])


def _require_ome(path: Path, file: Any, max_megapixels: float | None) -> None:
    """The sizes in the XML of a microscope, for which tifffile makes lists of as many pages."""
    text = html.unescape(file.ome_metadata or "")
    for element in re.findall(r"<(?:\w+:)?Pixels\b[^>]*>", text):
        sizes = [int(n) for n in re.findall(r"""\bSize[A-Z]\s*=\s*["']\s*(\d+)""", element)]
        require_plausible(path, sizes, 1.0, max_megapixels)


def _require_page(path: Path, page: Any, max_megapixels: float | None) -> None:
    """Size, tiles and type of one page."""
    if page.dtype is None:
        raise ValueError(
            f"its {page.bitspersample} bits of the format {page.sampleformat} are no number type; "
            "save it with 8, 16 or 32 bits"
        )
    require_plausible(path, page.shape, _itemsize(page), max_megapixels)
    if page.is_tiled:  # decoders allocate whole tiles, however small the picture is
        tile = (page.tilewidth, page.tilelength, max(page.tiledepth, 1), page.samplesperpixel)
        require_plausible(path, tile, _itemsize(page), max_megapixels)


def _itemsize(page: Any) -> float:
    """Bytes of a number in the file, where bits may be packed."""
    bits = page.bitspersample
    return bits / 8 if isinstance(bits, int) and bits > 0 else 1.0
