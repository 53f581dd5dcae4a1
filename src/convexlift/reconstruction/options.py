"""Options of ``cl.reconstruct`` and of ``convexlift reconstruct``, task by task.

Nothing here imports torch: help texts are made from these docstrings, types and defaults. Types in
quotes are for callers in Python; the command line has its own for these options.
"""

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from convexlift.option_values import WATER, AngleUnit, Beam, MethodName, NoiseKind, Quantity

if TYPE_CHECKING:
    import torch

    from convexlift.networks.icnn import InputConvexNetwork
    from convexlift.reconstruction.contents import ImageLike
    from convexlift.reconstruction.ranges import RangeChoice
    from convexlift.reconstruction.weight import WeightChoice
    from convexlift.scans.sinograms import ScanGeometry
    from convexlift.scans.volumes import Window
    from convexlift.tasks import Bounds


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """Options of all tasks.

    Args:
        regularizer: a name, the path of a saved one, or ``tv``. convexlift models lists the names,
            and those that companies may use; photo-open is free for any use.
        weight: a number, or a rule. ``card``: the weight on the regularizer's card, scaled to noise
            and texture. ``auto``: chosen by prediction of held-out data.
        strength: factor of the weight that the rule finds: above 1 smoother, below 1 sharper. For
            a regularizer that reads the data, which scales with the noise, that weight is 1. Give
            a weight as a number, or a strength, not both.
        tolerance: certified relative gap to stop at.
        time_limit: seconds for each file, or batch of files; its weight takes at most half of them.
            Reading, and the certificate of an image in tiles, are not included.
        max_iterations: most iterations for each file.
        check_every: iterations between two checks, at which ``progress`` is called.
        method: solver; methods that need a step size try several for a few iterations.
        device: processor to compute on; ``auto`` takes a GPU if there is one.
        batch: images of one size solved at once: ``auto``, as many as fit, or a number.
        gap_map: whether to compute a map of the gap.
        weight_map: whether to return a map of the weights; an error for a regularizer that does not
            read the data.
        box: bounds on the image, on the scale of the regularizer, in place of the task's own.
        truth: clean image, or a folder with clean images of the inputs' names, to compute PSNR and
            SSIM.
    """

    regularizer: "str | os.PathLike[str] | InputConvexNetwork" = "photo-open"
    weight: "WeightChoice | None" = "card"
    strength: float = 1.0
    tolerance: float = 1e-3
    time_limit: float | None = None
    max_iterations: int = 2000
    check_every: int = 10
    method: MethodName = "default"
    device: "str | torch.device" = "auto"
    batch: int | Literal["auto"] = "auto"
    gap_map: bool = False
    weight_map: bool = False
    box: "Bounds | None" = None
    truth: "ImageLike | None" = None

    task: ClassVar[str]
    python_only: ClassVar[tuple[str, ...]] = ("check_every", "box")
    """Options that the command line does not have; records leave out their defaults."""
    ending: ClassVar[Any] = None
    """The ending of results in a folder, if it differs from their input's."""

    def __getstate__(self) -> dict[str, Any]:
        """The options alone: another process finds its own device and loads the network itself."""
        return {option.name: getattr(self, option.name) for option in fields(self)}


@dataclass(frozen=True, kw_only=True, eq=False)
class DenoiseOptions(Options):
    """Remove Gaussian noise, or salt and pepper.

    PNG, JPEG, TIFF (8 and 16 bits, floats, stacks), NPY and DICOM. Results keep bit depth, alpha
    and metadata; NAME.json beside each has objective, lower bound and gap. Red, green and blue are
    one image for photo and photo-open; other regularizers take them one by one, as all take pages.

    Args:
        noise: model of the noise; by default chosen for each image.
        sigma: noise level, relative to the distance from black to white (0.1, or 25/255), or the
            fraction of pixels that are salt and pepper; by default estimated for each image.
        range: numbers that mean black and white, LOW,HIGH (two numbers), or ``data``: smallest and
            largest. ``auto``: 0 and the largest of an integer type; for floats, the first of 0,1
            and 0,255 and 0,4095 and 0,65535 that holds the image, whatever its noise. Others are
            mapped without outliers, and need LOW,HIGH for ``sigma`` and ``truth``.
        tiles: side of the tiles in which a large image is solved, in pixels, or ``off``. ``auto``:
            tiles that fit the memory, for images that do not. One certificate covers the whole
            image in either case; there are no proof files and gap maps of images in tiles.
        slices: planes of a TIFF or NPY file, FIRST:END (two numbers); all by default.
        simulate: the image is clean: damage it first, and compare the result with it.
        seed: seed of the simulated noise; plane i has ``seed + i``.
        jpeg: for an array decoded from a JPEG file, its quantization table of luma, 64 numbers row
            by row. Compression smooths noise, and the table tells how much.
    """

    noise: NoiseKind | None = None
    sigma: float | None = None
    range: "RangeChoice" = "auto"
    tiles: int | Literal["auto", "off"] = "auto"
    slices: tuple[int, int] | None = None
    simulate: bool = False
    seed: int = 0
    jpeg: tuple[int, ...] | None = None

    task: ClassVar[str] = "denoise"
    python_only = (*Options.python_only, "simulate", "seed", "jpeg")


@dataclass(frozen=True, kw_only=True, eq=False)
class InpaintOptions(DenoiseOptions):
    """Fill in missing pixels: of a mask, of a colour, or NaN in floats.

    PNG, JPEG, TIFF (8 and 16 bits, floats, stacks), NPY and DICOM. Pixels that were seen lose their
    noise, which is taken for Gaussian unless --noise says otherwise.

    Args:
        mask: an image, or a folder of them with the inputs' names; white is seen.
        invert_mask: white is missing.
        mask_colour: pixels of this colour are missing: '#ff00ff'.
        colour_tolerance: levels (of 255) by which a pixel may differ from the mask colour.
        missing: with ``simulate`` and no mask, the fraction of pixels to hide.
    """

    mask: "ImageLike | None" = None
    invert_mask: bool = False
    mask_colour: str | None = None
    colour_tolerance: int = 0
    missing: float = 0.3

    task: ClassVar[str] = "inpaint"
    python_only = (*DenoiseOptions.python_only, "missing")


@dataclass(frozen=True, kw_only=True, eq=False)
class ScanOptions(Options):
    """Slices from sinograms, as HU in TIFF, DICOM, NPY or PNG.

    Sinograms are HDF5 (Data Exchange), or NPY or TIFF with their geometry in a JSON file beside
    them; --beam replaces that file where views are evenly spaced. They hold counts with flat and
    dark fields, transmissions, or line integrals. Not for diagnosis.

    Args:
        truth: slices in HU, as large as the result, to compute PSNR and SSIM.
        weight: as for denoise; by default auto, and card, made for such scans, with --simulate.
        quantity: meaning of the numbers, in place of the one that the file states.
        geometry: rays of an array of projections (rows, angles, bins).
        beam: beam of evenly spaced views, the first at 0 degrees; replaces the geometry in files.
        arc: degrees that evenly spaced views cover, by default 180, and 360 for a fan; negative if
            the object turns the other way. If a slice comes out upside down, write --arc -180
            (docs/files.md, "Orientation").
        bin_width: width of a detector bin in mm, with --beam; fans need it. Without it, results are
            per detector pixel, not in HU.
        source_distance: from the source to the centre of rotation in mm, with --beam fan.
        detector_distance: from the centre of rotation to the detector in mm, with --beam fan.
        flat: readings without object: a number, or an NPY file.
        dark: readings without beam: a number, or an NPY file.
        photons: photons in a free ray, for transmissions and line integrals; estimated by default.
        background: mean r of the background, for emission counts y ~ Poisson(A x + r).
        sigma: noise of line integrals, if it is the same in all rays.
        size: pixels of a side; by default as many as bins.
        extent: side in mm; by default the field of view.
        water: attenuation of water in 1/mm, for HU.
        angle_unit: unit of the angles in HDF5 files that do not state it.
        rows: detector rows, FIRST:END (two numbers); all by default.
        window: display window of PNG results: abdomen, bone, brain, liver, lung, mediastinum, or
            LEVEL,WIDTH in HU.
        simulate: inputs are slices; simulate a scan with counts.
        views: number of directions of a simulated scan.
        bins: number of detector bins of a simulated scan.
        seed: seed of the simulated noise.
    """

    regularizer: Any = "ct-abdomen-chest"
    weight: "WeightChoice | None" = None
    quantity: Quantity | None = None
    geometry: "ScanGeometry | None" = None
    beam: Beam | None = None
    arc: float | None = None
    bin_width: float | None = None
    source_distance: float | None = None
    detector_distance: float | None = None
    flat: "float | ImageLike | None" = None
    dark: "float | ImageLike | None" = None
    photons: float | None = None
    background: float | None = None
    sigma: float | None = None
    size: int | None = None
    extent: float | None = None
    water: float = WATER
    angle_unit: AngleUnit | None = None
    rows: tuple[int, int] | None = None
    window: "Window | str" = "abdomen"
    simulate: bool = False
    views: int = 200
    bins: int = 400
    seed: int = 0

    task: ClassVar[str] = "ct"
    python_only = (*Options.python_only, "geometry")


OPTIONS: dict[str, type[Options]] = {
    kind.task: kind for kind in (DenoiseOptions, InpaintOptions, ScanOptions)
}
"""Options by task."""
