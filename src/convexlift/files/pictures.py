"""Whole pictures: every page, channel and bit of a file, its metadata, and the way back.

``files.planes`` reads one grey plane, for training. Here a file becomes all its planes, as values

    v = (stored - low) / (high - low),    (low, high) = (0, largest integer), or (0, 1) for floats,

and values become a file of the same kind again: bit depth, alpha channel, colour profile, EXIF,
resolution and description are kept where the format has a place for them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from convexlift.files.decoding_errors import reason_of
from convexlift.files.planes import open_picture, pillow, read_npy
from convexlift.files.png16 import has_deep_colours, read_deep_colours, with_deep_colours
from convexlift.files.tiff import open_tiff, tifffile_module

Range = tuple[float, float]

TIFF = (".tif", ".tiff")
JPEG = (".jpg", ".jpeg")
# Values of TIFF's photometric interpretation: grey, RGB, and what becomes RGB when it is decoded.
_MINISWHITE, _MINISBLACK, _RGB, _PALETTE, _YCBCR = 0, 1, 2, 3, 6
_ORIENTATION = 274  # the tag of TIFF, and of EXIF
_TURNS = {  # what displays a grid: swap rows and columns, then reverse the rows, and the columns
    1: (False, False, False), 2: (False, False, True),
    3: (False, True, True), 4: (False, True, False),
    5: (True, False, False), 6: (True, False, True),
    7: (True, True, True), 8: (True, True, False),
}  # fmt: skip
_ALPHA = (1, 2)  # values of TIFF's extra samples
_JPEG_QUALITY = 95
_PNG_TEXT = "tEXt"


@dataclass(frozen=True, eq=False)
class Picture:
    """A file, taken apart.

    Attributes:
        stored: the numbers of the file, (planes, H, W): pages and colour channels one by one.
        alpha: (pages, H, W) as stored, or None.
        channels: of each page, without alpha.
        layout: the shape of the array in the file, where it is an array (NPY, TIFF).
        inverted: whether 0 is white (some TIFF files).
        metadata: what the writer of the format takes, by the names of its arguments.
    """

    stored: NDArray[Any]
    alpha: NDArray[Any] | None = None
    channels: int = 1
    layout: tuple[int, ...] = ()
    inverted: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def full_range(self) -> Range:
        """The numbers that mean black and white."""
        kind = self.stored.dtype
        return (0.0, 1.0) if kind.kind in "fb" else (0.0, float(np.iinfo(kind).max))

    @property
    def orientation(self) -> int:
        """How the stored grid is turned to be displayed: 1 to 8, as in EXIF and TIFF."""
        turned = _orientation(self.metadata)
        return turned if turned in _TURNS else 1

    def values(self, numbers: Range) -> NDArray[np.float32]:
        """(stored - low) / (high - low); NaN stays NaN."""
        low, high = numbers
        values = ((self.stored.astype(np.float64) - low) / (high - low)).astype(np.float32)
        return 1 - values if self.inverted else values

    def with_values(self, values: NDArray[Any], numbers: Range) -> Picture:
        """The same picture with other values, rounded and clipped as its numbers need it."""
        low, high = numbers
        inverted = 1 - values if self.inverted else values
        numbers_now: NDArray[Any] = low + (high - low) * inverted.astype(np.float64)
        kind = self.stored.dtype
        if kind.kind == "b":
            numbers_now = numbers_now >= 0.5
        elif kind.kind in "iu":
            limits = np.iinfo(kind)
            numbers_now = np.clip(np.rint(numbers_now), limits.min, limits.max)
        return replace(self, stored=numbers_now.astype(kind).reshape(self.stored.shape))


def read_picture(path: Path, *, max_megapixels: float | None = None) -> Picture:
    """All planes of a PNG, JPEG, TIFF or NPY file; errors open with its name.

    ``max_megapixels`` replaces the limits of ``files.limits`` on the size in the header.
    """
    suffix = path.suffix.lower()
    read: Callable[[Path, float | None], Picture] = {
        ".npy": _from_npy,
        **dict.fromkeys(TIFF, _from_tiff),
    }.get(suffix, _from_pillow)
    try:
        picture = read(path, max_megapixels)
    except ImportError:
        raise
    except Exception as error:  # decoders of damaged files raise nearly everything
        raise ValueError(f"{path} cannot be read as a picture: {reason_of(error)}") from None
    if picture.stored.dtype.kind not in "biuf" or 0 in picture.stored.shape:
        shape = picture.layout or picture.stored.shape
        raise ValueError(
            f"{path} holds {picture.stored.dtype} of shape {shape}; write real numbers, (H, W) or "
            "more of them"
        )
    return picture


def write_picture(picture: Picture, path: Path, kind: str) -> None:
    """Write to exactly this path, in the format of the ending ``kind``."""
    if kind == ".npy":
        with path.open("wb") as file:
            np.save(file, _as_laid_out(picture), allow_pickle=False)
    elif kind in TIFF:
        _to_tiff(picture, path)
    elif kind in JPEG or kind == ".png":
        _to_pillow(picture, path, kind)
    else:
        raise ValueError(f"pictures are written as PNG, JPEG, TIFF or NPY, not as {kind!r}")


def writable(picture: Picture, kind: str) -> str | None:
    """Why the picture cannot be written in the format of this ending, or None if it can."""
    depth = picture.stored.dtype
    several = len(picture.stored) > picture.channels
    if kind == ".npy" or kind in TIFF:
        return None
    if several:
        return f"{kind} holds one page, and this has {len(picture.stored) // picture.channels}"
    if kind == ".png":
        if depth in (np.uint8, np.uint16, np.bool_):
            return None
        return f"{depth} is not written as PNG here"
    if kind in JPEG:
        if depth not in (np.uint8, np.bool_):
            return f"JPEG has 8 bits, and this is {depth}"
        return None if picture.alpha is None else "JPEG has no alpha channel"
    return f"{kind!r} is none of .png, .jpg, .tif and .npy"


def displayed_size(shape: Sequence[int], orientation: int) -> tuple[int, int]:
    """Height and width of planes (..., H, W) as people see them."""
    height, width = shape[-2:]
    return (width, height) if _TURNS[orientation][0] else (height, width)


def regrid(planes: NDArray[Any], own: int, wanted: int) -> NDArray[Any]:
    """Planes (..., H, W) of one orientation on a grid of another, where they look the same."""
    if own == wanted:
        return planes
    swapped, *reversed_ = _TURNS[own]
    shown = _reversed(planes.swapaxes(-1, -2) if swapped else planes, *reversed_)
    swapped, *reversed_ = _TURNS[wanted]
    back = _reversed(shown, *reversed_)
    return np.ascontiguousarray(back.swapaxes(-1, -2) if swapped else back)


def _reversed(planes: NDArray[Any], rows: bool, columns: bool) -> NDArray[Any]:
    return planes[..., :: -1 if rows else 1, :: -1 if columns else 1]


def _from_npy(path: Path, max_megapixels: float | None) -> Picture:
    array = read_npy(path, max_megapixels)
    if array.ndim < 2 or array.size == 0:
        raise ValueError(f"it has the shape {array.shape}; write (H, W), or more of them")
    array = array.astype(array.dtype.newbyteorder("="))
    colours = array.ndim == 3 and array.shape[-1] in (3, 4) and array.shape[0] not in (1, 3, 4)
    if not colours:
        return Picture(array.reshape(-1, *array.shape[-2:]), layout=array.shape)
    alpha = array[None, ..., 3] if array.shape[-1] == 4 else None
    return Picture(array[..., :3].transpose(2, 0, 1), alpha, 3, array.shape)


def _as_laid_out(picture: Picture) -> NDArray[Any]:
    """The planes in the shape of the array they were read from."""
    stored, shape = picture.stored, picture.layout
    samples = picture.channels + (picture.alpha is not None)
    if samples == 1:
        return stored.reshape(shape or stored.shape[-2:])
    pages = stored.reshape(-1, picture.channels, *stored.shape[-2:])
    if picture.alpha is not None:
        pages = np.concatenate([pages, picture.alpha[:, None]], axis=1)
    last = pages.transpose(0, 2, 3, 1)
    return last.reshape(shape or last.shape[1:])


def _from_pillow(path: Path, max_megapixels: float | None) -> Picture:
    with open_picture(path, max_megapixels) as image:
        if getattr(image, "n_frames", 1) > 1:
            raise ValueError(f"it has {image.n_frames} frames; save each as a file of its own")
        info = dict(image.info)
        metadata = {name: info[name] for name in ("exif", "icc_profile", "dpi") if info.get(name)}
        text = dict(getattr(image, "text", {}))
        if text:
            metadata[_PNG_TEXT] = text
        clear = info.get("transparency")  # a grey level, a colour, or of a palette's colours
        if image.format == "PNG" and has_deep_colours(data := path.read_bytes()):
            return _deep_colours(read_deep_colours(data), clear, metadata)
        deep = image.mode.startswith("I")  # 16-bit grey; "I" from older versions of Pillow
        if clear is not None and not deep:
            image = image.convert("LA" if image.mode in ("1", "L") else "RGBA")
        elif image.mode == "P":
            image = image.convert("RGB")
        pixels = np.asarray(image)
        mode = image.mode
    if deep:
        pixels = pixels.astype(np.uint16)
        if clear is not None:  # by hand: Pillow would cut 16 bits to 8
            opaque = np.where(pixels == clear, 0, 65535).astype(np.uint16)
            return Picture(pixels[None], opaque[None], metadata=metadata)
    elif mode not in ("1", "L", "LA", "RGB", "RGBA", "F"):
        raise ValueError(f"it has the colours {mode}; save it as grey or RGB")
    if pixels.ndim == 2:
        return Picture(pixels[None], metadata=metadata)
    alpha = pixels[None, ..., -1] if mode in ("LA", "RGBA") else None
    colours = pixels if alpha is None else pixels[..., :-1]
    return Picture(colours.transpose(2, 0, 1), alpha, colours.shape[-1], metadata=metadata)


def _deep_colours(
    pixels: NDArray[np.uint16], clear: tuple[int, int, int] | None, metadata: dict[str, Any]
) -> Picture:
    """Of a PNG file, with its alpha channel, or the colour that is transparent."""
    if pixels.shape[-1] in (2, 4):
        alpha, pixels = pixels[None, ..., -1], pixels[..., :-1]
    elif clear is not None:
        alpha = np.where((pixels == clear).all(-1), 0, 65535).astype(np.uint16)[None]
    else:
        alpha = None
    return Picture(pixels.transpose(2, 0, 1), alpha, pixels.shape[-1], metadata=metadata)


def _to_pillow(picture: Picture, path: Path, kind: str) -> None:
    module = pillow()
    pages = replace(picture, layout=())
    pixels = np.ascontiguousarray(_as_laid_out(pages))
    options = {k: v for k, v in picture.metadata.items() if k in ("exif", "icc_profile", "dpi")}
    if "orientation" in picture.metadata:
        exif = module.Exif()
        exif[_ORIENTATION] = picture.metadata["orientation"]
        options["exif"] = exif
    if kind in JPEG:
        options |= {"format": "JPEG", "quality": _JPEG_QUALITY, "subsampling": 0}
    else:
        options["format"] = "PNG"
        if text := picture.metadata.get(_PNG_TEXT):
            from PIL.PngImagePlugin import PngInfo

            options["pnginfo"] = PngInfo()
            for key, value in text.items():
                options["pnginfo"].add_text(key, str(value))
    if pixels.dtype == np.uint16 and pixels.ndim == 3:
        shallow = io.BytesIO()
        module.fromarray((pixels >> 8).astype(np.uint8)).save(shallow, **options)
        path.write_bytes(with_deep_colours(shallow.getvalue(), pixels))
    else:
        module.fromarray(pixels).save(path, **options)


def _from_tiff(path: Path, max_megapixels: float | None) -> Picture:
    with open_tiff(path, max_megapixels) as file:
        if len(file.series) != 1:
            raise ValueError(
                f"it has {len(file.series)} series of pages; save each as a file of its own"
            )
        series, page = file.series[0], file.pages.first
        if page.photometric == _PALETTE:
            raise ValueError("its colours are a palette; save it as RGB")
        if page.photometric not in (_MINISWHITE, _MINISBLACK, _RGB, _YCBCR):
            raise ValueError(f"its colours are {page.photometric.name}; save it as grey or RGB")
        if page.bitspersample not in (1, 8, 16, 32, 64):
            raise ValueError(f"it has {page.bitspersample} bits; save it with 8, 16 or 32")
        array = series.asarray()
        axes = series.axes
        extra = tuple(int(each) for each in page.extrasamples)
        metadata = _tiff_metadata(page)
        inverted = page.photometric == _MINISWHITE
        colour = page.photometric in (_RGB, _YCBCR)
    array = array.astype(array.dtype.newbyteorder("="))
    if "S" not in axes:
        return Picture(
            array.reshape(-1, *array.shape[-2:]), None, 1, array.shape, inverted, metadata
        )
    last = np.moveaxis(array, axes.index("S"), -1)
    if colour and len(extra) > 1:
        raise ValueError(f"it has {len(extra)} samples beside RGB; save it with one at most")
    # What is beside RGB is no colour, whatever else it may be: it is kept as alpha is.
    has_alpha = bool(extra) and (colour or extra[-1] in _ALPHA)
    pages = last.reshape(-1, *last.shape[-3:])
    alpha = pages[..., -1] if has_alpha else None
    colours = pages[..., :-1] if has_alpha else pages
    if has_alpha:
        metadata["extrasamples"] = (extra[-1],)
    planes = colours.transpose(0, 3, 1, 2).reshape(-1, *colours.shape[1:3])
    return Picture(planes, alpha, colours.shape[-1], last.shape, inverted, metadata)


def _tiff_metadata(page: Any) -> dict[str, Any]:
    """What is written again; values that no TIFF file can have are left out."""
    kept: dict[str, Any] = {"compressed": int(page.compression) != 1}

    def value(name: str) -> Any:
        return page.tags[name].value if name in page.tags else None

    resolution = (value("XResolution"), value("YResolution"))
    if all(_is_ratio(each) for each in resolution):
        kept["resolution"] = resolution
        if value("ResolutionUnit") in (1, 2, 3):
            kept["resolutionunit"] = value("ResolutionUnit")
    text = page.description
    if isinstance(text, str) and text and not text.startswith('{"shape"'):  # tifffile's own
        kept["description"] = text.encode()  # bytes may have any letter
    if value("Orientation") in _TURNS:
        kept["orientation"] = int(value("Orientation"))
    if isinstance(value("InterColorProfile"), bytes):
        kept["icc_profile"] = value("InterColorProfile")
    return kept


def _is_ratio(value: Any) -> bool:
    """Whether it is a pair of numbers > 0, as resolutions are."""
    return (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(each, int) and each > 0 for each in value)
    )


def _to_tiff(picture: Picture, path: Path) -> None:
    tifffile = tifffile_module(path)
    kept = picture.metadata
    array = _as_laid_out(picture)
    colour = picture.channels == 3
    photometric = "rgb" if colour else "miniswhite" if picture.inverted else "minisblack"
    options: dict[str, Any] = {"photometric": photometric, "metadata": None}
    for name in ("resolution", "resolutionunit", "description", "extrasamples"):
        if name in kept:
            options[name] = kept[name]
    if "dpi" in kept and "resolution" not in kept:
        options |= {"resolution": tuple(float(d) for d in kept["dpi"]), "resolutionunit": "INCH"}
    if picture.alpha is not None and "extrasamples" not in kept:
        options["extrasamples"] = ("unassalpha",)
    if picture.channels + (picture.alpha is not None) > 1:
        options["planarconfig"] = "contig"
    if kept.get("compressed"):
        options["compression"] = "zlib"
    if "icc_profile" in kept:
        options["iccprofile"] = kept["icc_profile"]
    if (turned := _orientation(kept)) is not None:
        options["extratags"] = [(_ORIENTATION, "H", 1, turned, True)]
    tifffile.imwrite(path, array, **options)


def _orientation(metadata: dict[str, Any]) -> int | None:
    """How the picture is to be turned, of a TIFF file or in EXIF."""
    if "orientation" in metadata:
        return int(metadata["orientation"])
    if "exif" not in metadata:
        return None
    exif = pillow().Exif()
    exif.load(metadata["exif"])
    turned = exif.get(_ORIENTATION)
    return None if turned is None else int(turned)
