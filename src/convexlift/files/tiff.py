"""TIFF files with any number of pages, bits and channels; declared sizes are checked first."""

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

import numpy as np
from numpy.typing import NDArray

from convexlift.files.compressed import (
    NEW_INFLATERS,
    require_expansion,
    require_frame,
    require_packbits,
)
from convexlift.files.formats import (
    EXPANSION,
    BoundedReader,
    load_extra,
    pillow,
    require_plausible,
)
from convexlift.files.pictures import (
    ORIENTATION,
    Picture,
    PictureFormat,
    from_channels_last,
    require_one_page,
)
from convexlift.files.png_jpeg import grey_pixels, open_picture

# Values of TIFF's photometric interpretation: grey, RGB, and colours that are decoded to RGB.
_MINISWHITE, _MINISBLACK, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
_BITS, _PHOTOMETRIC = 258, 262  # tags
_ALPHA = (1, 2)  # values of the tag for extra samples
_UNCOMPRESSED, _PACKBITS = 1, 32773
_JPEG = (6, 7, 33007, 34892, 33003, 33004, 33005, 34712)  # the last four are JPEG 2000
_DEFLATE, _LZMA, _ZSTANDARD = (8, 32946, 50013), 34925, (34926, 50000)
_INFLATED = {**dict.fromkeys(_DEFLATE, "deflate"), _LZMA: "LZMA"}
if "Zstandard" in NEW_INFLATERS:
    _INFLATED |= dict.fromkeys(_ZSTANDARD, "Zstandard")
_BOUNDED = (_UNCOMPRESSED, 2, 3, 4, 5, *_ZSTANDARD)
"""Decoders of fax, LZW and Zstandard in imagecodecs fill a buffer of the declared size."""
_SILENCE = logging.NullHandler()


class Tiff(PictureFormat):
    """Pages of grey levels or RGB with at most one extra sample, in integers or floats."""

    name = "TIFF"
    suffixes = (".tif", ".tiff")
    marks = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")  # the last two are BigTIFF
    holds_nan = True

    def read(self, path: Path) -> Picture:
        """All pages of one series."""
        with open_tiff(path) as file:
            if len(file.series) != 1:
                raise ValueError(
                    f"it has {len(file.series)} series of pages; save each as a separate file"
                )
            page = file.pages.first
            if page.photometric == _PALETTE:
                raise ValueError("its colours are a palette; save it as RGB")
            if page.photometric not in (_MINISWHITE, _MINISBLACK, _RGB, _YCBCR):
                raise ValueError(f"its colours are {colours_of(page)}; save it as grey or RGB")
            if page.bitspersample not in (1, 8, 16, 32, 64):
                raise ValueError(f"it has {page.bitspersample} bits; save it with 8, 16 or 32")
            return decoded(file)

    def read_pages(self, path: Path, pages: slice) -> Picture:
        """Some of the pages; in a single series of grey pages, only these are read."""
        with open_tiff(path, some=True) as file:
            series, page = file.series[0], file.pages.first
            count, *size = _stack(series)
            grey = page.photometric in (_MINISWHITE, _MINISBLACK) and page.samplesperpixel == 1
            if len(file.series) != 1 or not grey or count != len(file.pages):
                return super().read_pages(path, pages)
            wanted = list(range(count)[pages])
            require_plausible(path, (len(wanted), *size), _itemsize(page))
            stored = file.asarray(key=wanted).reshape(-1, *size)
            stored = stored.astype(stored.dtype.newbyteorder("="), copy=False)
            inverted = page.photometric == _MINISWHITE
            return Picture(stored, layout=stored.shape, inverted=inverted, metadata=_metadata(page))

    def pages(self, path: Path) -> int:
        """The number of pages, from the headers."""
        with open_tiff(path, some=True) as file:
            return _stack(file.series[0])[0]

    def write(self, picture: Picture, path: Path) -> None:
        """Write with all bits, resolution, description, orientation and colour profile."""
        kept = picture.metadata
        grey = "miniswhite" if picture.inverted else "minisblack"
        options: dict[str, Any] = {"photometric": "rgb" if picture.channels == 3 else grey}
        as_read = ("resolution", "resolutionunit", "description", "extrasamples")
        options |= {name: kept[name] for name in as_read if name in kept}
        if "dpi" in kept and "resolution" not in kept:
            dpi = tuple(float(d) for d in kept["dpi"])
            options |= {"resolution": dpi, "resolutionunit": "INCH"}
        if picture.alpha is not None and "extrasamples" not in kept:
            options["extrasamples"] = ("unassalpha",)
        if picture.channels + (picture.alpha is not None) > 1:
            options["planarconfig"] = "contig"
        if kept.get("compressed"):
            options["compression"] = "zlib"
        if "icc_profile" in kept:
            options["iccprofile"] = kept["icc_profile"]
        if picture.orientation != 1:
            options["extratags"] = [(ORIENTATION, "H", 1, picture.orientation, True)]
        _tifffile(path).imwrite(path, picture.as_array(), metadata=None, **options)

    def read_plane(self, path: Path) -> NDArray[Any]:
        """Read 8 and 16 bits, colours and float32 with Pillow, all other types with tifffile."""
        module = pillow()
        try:
            with open_picture(path) as picture:
                if not hasattr(picture, "tag_v2"):
                    raise ValueError(f"it is a {picture.format} file, despite its name; rename it")
                require_one_page(picture.n_frames)
                tags, mode = picture.tag_v2, picture.mode
                inverted = tags.get(_PHOTOMETRIC) == _MINISWHITE
                # Pillow also opens 12-bit files as I;16, and does not undo inverted grey levels.
                deep = mode.startswith("I;16") and tags.get(_BITS) == (16,)
                if ((deep or mode == "F") and not inverted) or mode[0] not in "IF":
                    return grey_pixels(picture)
        except module.UnidentifiedImageError:
            with path.open("rb") as file:
                mark = file.read(2)
            if mark not in (b"II", b"MM"):  # not a TIFF file at all
                raise
        with open_tiff(path) as file:
            require_one_page(len(file.pages))  # a second page may look like a level of a pyramid
        return super().read_plane(path)


def decoded(file: Any) -> Picture:
    """The first series of a ``tifffile.TiffFile``."""
    series, page = file.series[0], file.pages.first
    try:
        array = np.asarray(series.asarray())
    except ValueError as error:
        if "imagecodecs" not in str(error):
            raise
        raise ValueError(
            f"it is compressed as {page.compression.name} and needs a codec, "
            "pip install imagecodecs"
        ) from error
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    rest: dict[str, Any] = {
        "inverted": page.photometric == _MINISWHITE,
        "metadata": _metadata(page),
    }
    if "S" not in series.axes:
        return Picture(array.reshape(-1, *array.shape[-2:]), layout=array.shape, **rest)
    colour, extra = page.photometric in (_RGB, _YCBCR), tuple(map(int, page.extrasamples))
    if colour and len(extra) > 1:
        raise ValueError(f"it has {len(extra)} extra samples; save it with at most one")
    # An extra sample is not a colour: it is treated like alpha.
    alpha = bool(extra) and (colour or extra[-1] in _ALPHA)
    if alpha:
        rest["metadata"]["extrasamples"] = (extra[-1],)
    last = np.moveaxis(array, series.axes.index("S"), -1)
    return from_channels_last(last, alpha, layout=last.shape, **rest)


def _stack(series: Any) -> tuple[int, int, int]:
    """Pages, height and width."""
    *pages, height, width = series.shape[:-1] if series.axes.endswith("S") else series.shape
    return math.prod(pages), height, width


def colours_of(page: Any) -> str:
    """The name of the photometric interpretation, or its number if unnamed."""
    return str(getattr(page.photometric, "name", page.photometric))


def _metadata(page: Any) -> dict[str, Any]:
    """The tags that are written again, without values that are invalid in TIFF files."""
    kept: dict[str, Any] = {"compressed": int(page.compression) != _UNCOMPRESSED}

    def value(name: str) -> Any:
        return page.tags[name].value if name in page.tags else None

    resolution = (value("XResolution"), value("YResolution"))
    ratios = all(isinstance(each, tuple) and len(each) == 2 for each in resolution)
    if ratios and all(isinstance(n, int) and n > 0 for each in resolution for n in each):
        kept["resolution"] = resolution
        if value("ResolutionUnit") in (1, 2, 3):
            kept["resolutionunit"] = int(value("ResolutionUnit"))
    text = page.description
    if isinstance(text, str) and text and not text.startswith('{"shape"'):  # not from tifffile
        kept["description"] = text.encode()  # as bytes it may hold any character
    if value("Orientation") in range(1, 9):
        kept["orientation"] = int(value("Orientation"))
    if isinstance(value("InterColorProfile"), bytes):
        kept["icc_profile"] = value("InterColorProfile")
    return kept


def _tifffile(path: Path) -> Any:
    module = load_extra("tifffile", f"{path}: TIFF files", "cli")
    # Its messages about odd tags would appear on the terminal; our errors are sufficient.
    logging.getLogger("tifffile").addHandler(_SILENCE)
    return module


@contextlib.contextmanager
def open_tiff(path: Path, *, some: bool = False) -> Iterator[Any]:
    """A ``tifffile.TiffFile`` whose pages are small enough to be read, all or only some of them."""
    tifffile = _tifffile(path)
    with BoundedReader(path) as content, tifffile.TiffFile(content) as file:
        # The first page is checked alone, since finding the series already depends on its size.
        _require_page(path, file.pages.first)
        _require_end(file)
        _require_ome(path, file)
        levels = [level for series in file.series for level in series.levels]
        for level in levels:
            _require_page(path, level.keyframe)
        if not levels:
            raise ValueError("it has no pages; copy or export it again")
        frames = {id(page.keyframe): page.keyframe for level in levels for page in level if page}
        for keyframe in frames.values():
            _check_when_decoded(keyframe)
        compressed = any(int(level.keyframe.compression) != _UNCOMPRESSED for level in levels)
        numbers = sum(math.prod(level.shape) for level in levels)
        least = min(_itemsize(level.keyframe) for level in levels)
        expansion = EXPANSION if compressed else 1.0
        if not some:
            require_plausible(path, (numbers,), least, expansion)
        yield file


def _require_end(file: Any) -> None:
    """Raise if the chain of pages, each pointing to the next one, is an endless loop."""
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
            return  # cut short, which tifffile reports
        (offset,) = struct.unpack(tiff.offsetformat, entries[-tiff.offsetsize :])


def _require_ome(path: Path, file: Any) -> None:
    """Check the sizes in OME-XML metadata: tifffile creates lists of as many pages."""
    text = html.unescape(file.ome_metadata or "")
    for element in re.findall(r"<(?:\w+:)?Pixels\b[^>]*>", text):
        sizes = [int(n) for n in re.findall(r"""\bSize[A-Z]\s*=\s*["']\s*(\d+)""", element)]
        require_plausible(path, sizes, 1.0)


def _require_page(path: Path, page: Any) -> None:
    """Check size, tiles and type of one page."""
    if page.dtype is None:
        raise ValueError(
            f"its {page.bitspersample} bits of the format {page.sampleformat} are not a number "
            "type; save it with 8, 16 or 32 bits"
        )
    require_plausible(path, page.shape, _itemsize(page))
    if page.is_tiled:  # decoders allocate whole tiles, however small the picture is
        tile = (page.tilewidth, page.tilelength, max(page.tiledepth, 1), page.samplesperpixel)
        require_plausible(path, tile, _itemsize(page))


def _check_when_decoded(page: Any) -> None:
    """Let each strip or tile of a page be checked before it expands."""
    kind, decode = int(page.compression), page.decode
    checked = kind == _PACKBITS or kind in _JPEG or kind in _INFLATED
    if not checked and kind not in _BOUNDED:
        name = getattr(page.compression, "name", kind)
        raise ValueError(f"it is compressed as {name}, which is not read; save it with deflate")
    if checked and page.fillorder != 1:
        raise ValueError("the bits of its compressed bytes are in reverse order; save it again")
    rows, columns = min(page.rowsperstrip, page.imagelength), page.imagewidth
    if page.is_tiled:
        rows, columns = page.tilelength * max(page.tiledepth, 1), page.tilewidth
    samples = page.samplesperpixel if page.planarconfig == 1 else 1
    most = rows * columns * samples * page.dtype.itemsize

    def decode_checked(data: bytes | None, *arguments: Any, **options: Any) -> Any:
        if data is not None and kind in _INFLATED:
            require_expansion(data, most, _INFLATED[kind])
        elif data is not None and kind == _PACKBITS:
            require_packbits(data, most)
        elif data is not None and kind in _JPEG:
            require_frame(data, rows, columns)
        return decode(data, *arguments, **options)

    page.decode = decode_checked  # of each page, since only some are keyframes of others


def _itemsize(page: Any) -> float:
    """Bytes per number in the file; a fraction for packed bits."""
    bits = page.bitspersample
    return bits / 8 if isinstance(bits, int) and bits > 0 else 1.0
