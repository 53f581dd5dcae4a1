"""Pictures and runs of the web page, for several test files."""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from PIL import Image, ImageDraw

from convexlift.images import load_example
from convexlift.phantoms import shepp_logan
from convexlift.web.limits import Limits
from convexlift.web.pictures import InputPicture
from convexlift.web.run import TV, PageJob, Run

LIMITS = Limits(pixels=100 * 100, upload_bytes=50_000)


def crop(size=48, planes=1):
    values = load_example("camera")[..., 60 : 60 + size, 90 : 90 + size]
    return InputPicture(values.repeat(1, planes, 1, 1).contiguous(), "crop.png", clean=True)


def letters(size=64):
    """Black on white, (1, 1, size, size)."""
    page = Image.new("L", (size, size), 255)
    for row in range(0, size, 16):
        ImageDraw.Draw(page).text((1, row), "The quick brown fox jumps", fill=0, font_size=14)
    return torch.from_numpy(np.asarray(page) / np.float32(255))[None, None]


def two_widths(path):
    """A TIFF file whose header gives the width as two numbers: readers raise a TypeError."""
    Image.new("L", (30, 20), 90).save(path)
    content = bytearray(path.read_bytes())
    directory = int.from_bytes(content[4:8], "little")
    tags = range(directory + 2, directory + 2 + 12 * content[directory], 12)
    entry = next(tag for tag in tags if content[tag : tag + 2] == b"\x00\x01")
    content[entry + 2 : entry + 12] = struct.pack("<HIHH", 3, 2, 30, 30)
    path.write_bytes(content)
    return path


def finished(job, seconds=60.0):
    with ThreadPoolExecutor(1) as executor:
        return Run(job, seconds, executor).start().result()


def denoising(picture, **options):
    """A job that adds noise and removes it."""
    defaults = {"simulate": True, "noise": "gaussian", "sigma": 0.1, "regularizer": "tv"}
    return PageJob("denoise", picture, {**defaults, "tolerance": 1e-2, **options})


def inpainting(picture, **options):
    defaults = {"simulate": True, "sigma": 0.03, "regularizer": TV, "tolerance": 1e-2}
    return PageJob("inpaint", picture, {**defaults, **options})


def long_job(**options):
    picture = InputPicture(load_example("camera"), "camera", example=True, clean=True)
    return denoising(picture, **{"regularizer": "photo-open", "tolerance": 1e-6, **options})


def jobs():
    """One of each kind, by name."""
    mask = torch.ones(48, 48)
    mask[10:20, 15:30] = 0
    camera = load_example("camera")
    phantom = InputPicture(shepp_logan(48), "Shepp-Logan phantom", example=True, clean=True)
    scan = {"simulate": True, "regularizer": "ct-abdomen-chest", "views": 30, "tolerance": 5e-2}
    return {
        "gaussian": denoising(InputPicture(camera, "camera", example=True, clean=True)),
        "impulses": denoising(
            crop(), noise="salt-and-pepper", sigma=0.2, regularizer="photo-any-size"
        ),
        "noisy": denoising(crop(), simulate=False, noise=None, sigma=None),
        "random": inpainting(crop(planes=3), missing=0.3, seed=3, regularizer="photo-open"),
        "drawn": inpainting(crop(), mask=mask, simulate=False, sigma=None),
        "phantom": PageJob("ct", phantom, scan),
        "slice": PageJob("ct", crop(), {**scan, "regularizer": TV, "views": 20, "tolerance": 0.3}),
    }
