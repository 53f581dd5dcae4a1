"""``convexlift reconstruct denoise|inpaint|ct``."""

from __future__ import annotations

import shlex
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

import convexlift
from convexlift.cli.app import (
    FAILURE,
    Debug,
    Device,
    Failed,
    Interrupted,
    UserError,
    app,
    choose_device,
    one_sentence_errors,
    write_json,
)
from convexlift.cli.reconstruct_options import (
    DEFAULT_METHOD,
    AngleUnits,
    Batch,
    DeviceOption,
    Force,
    GapMap,
    Inputs,
    Json,
    MaxIterations,
    MaxMegapixels,
    MethodOption,
    NoiseOption,
    Output,
    ProofOption,
    Quantities,
    RangeOption,
    Regularizer,
    Resume,
    Sigma,
    TimeLimit,
    Tolerance,
    Truth,
    WeightOption,
    checked,
    named_options,
    photographs,
    read_batch,
    read_rows,
    read_weight,
    read_window,
    stopping,
)
from convexlift.cli.reconstruct_report import Narrator, as_json, discard, print_json
from convexlift.models.files import pair, sheet
from convexlift.models.store import load
from convexlift.networks.architectures import TotalVariation
from convexlift.networks.icnn import InputConvexNetwork
from convexlift.reconstruction.batch import Outcome, Preparation, reconstruct
from convexlift.reconstruction.engine import SEARCH, Engine
from convexlift.reconstruction.input_files import (
    DICOM,
    PICTURES,
    SINOGRAMS,
    Source,
    find_sources,
)
from convexlift.reconstruction.masks import MaskChoice, parse_colour
from convexlift.reconstruction.output_paths import check_targets
from convexlift.reconstruction.tomography import Scans, facts
from convexlift.scans.hounsfield import WATER, WINDOWS
from convexlift.solvers.stopping import StopWhen

PHOTO, CT = "photo-any-size", "ct-abdomen-chest"
CT_SEARCH = StopWhen(gap=1e-2, max_iterations=100)

STATUSES = (
    "Exit status: 0 all files done, 1 some files failed (they are listed, the others are done), "
    "2 bad usage (nothing was done), 130 interrupted (finished files, and the best image of the "
    "current one, are kept)."
)

group = typer.Typer(
    help=f"Your own files, with a proof beside each result.\n\n{STATUSES}", no_args_is_help=True
)
app.add_typer(group, name="reconstruct")


@group.command(epilog=STATUSES)
def denoise(
    inputs: Inputs,
    output: Output,
    noise: NoiseOption = None,
    sigma: Sigma = None,
    regularizer: Regularizer = PHOTO,
    weight: WeightOption = "card",
    truth: Truth = None,
    numbers: RangeOption = "auto",
    tolerance: Tolerance = 1e-3,
    time_limit: TimeLimit = None,
    max_iterations: MaxIterations = 2000,
    method: MethodOption = DEFAULT_METHOD,
    device: DeviceOption = Device.auto,
    batch: Batch = "auto",
    gap_map: GapMap = False,
    proof: ProofOption = False,
    force: Force = False,
    resume: Resume = False,
    max_megapixels: MaxMegapixels = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Remove Gaussian noise, or salt and pepper.

    PNG, JPEG, TIFF (8 and 16 bits, floats, stacks), NPY and DICOM. Results keep bit depth, alpha
    and metadata; NAME.json beside each has objective, lower bound and gap. Regularizers are for
    grey images: colours and pages are solved one by one.
    """
    common = _Common(output, regularizer, weight, tolerance, time_limit, max_iterations,
                     method.value, device, batch, gap_map, proof, force, resume, json_file,
                     debug)  # fmt: skip
    with one_sentence_errors(debug):
        task = photographs("denoise", noise, sigma, MaskChoice(), numbers, truth, max_megapixels)
        named = named_options(noise=noise, sigma=sigma, range=numbers, truth=truth)
        common.run("denoise", inputs, PICTURES, task, named)


@group.command(epilog=STATUSES)
def inpaint(
    inputs: Inputs,
    output: Output,
    mask: Annotated[
        Path | None,
        typer.Option(help="An image, or a folder of them with the inputs' names; white is seen."),
    ] = None,
    invert_mask: Annotated[bool, typer.Option("--invert-mask", help="White is missing.")] = False,
    mask_colour: Annotated[
        str | None,
        typer.Option(
            "--mask-colour", "--mask-color", help="Pixels of this colour are missing: '#ff00ff'."
        ),
    ] = None,
    colour_tolerance: Annotated[
        int,
        typer.Option(
            "--colour-tolerance", "--color-tolerance", help="Levels (of 255) it may differ by."
        ),
    ] = 0,
    noise: NoiseOption = None,
    sigma: Sigma = None,
    regularizer: Regularizer = PHOTO,
    weight: WeightOption = "card",
    truth: Truth = None,
    numbers: RangeOption = "auto",
    tolerance: Tolerance = 1e-3,
    time_limit: TimeLimit = None,
    max_iterations: MaxIterations = 2000,
    method: MethodOption = DEFAULT_METHOD,
    device: DeviceOption = Device.auto,
    batch: Batch = "auto",
    gap_map: GapMap = False,
    proof: ProofOption = False,
    force: Force = False,
    resume: Resume = False,
    max_megapixels: MaxMegapixels = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Fill in missing pixels: of a mask, of a colour, or NaN in float files.

    PNG, JPEG, TIFF (8 and 16 bits, floats, stacks), NPY and DICOM. Pixels that were seen lose their
    noise, which is taken for Gaussian unless --noise says otherwise.
    """
    common = _Common(output, regularizer, weight, tolerance, time_limit, max_iterations,
                     method.value, device, batch, gap_map, proof, force, resume, json_file,
                     debug)  # fmt: skip
    with one_sentence_errors(debug):
        colour = None if mask_colour is None else checked(parse_colour, mask_colour)
        masks = checked(MaskChoice, mask, invert_mask, colour, colour_tolerance, max_megapixels)
        if invert_mask and mask is None:
            raise UserError("--invert-mask needs --mask.")
        task = photographs("inpaint", noise, sigma, masks, numbers, truth, max_megapixels)
        named = named_options(
            noise=noise, sigma=sigma, range=numbers, truth=truth, mask=mask,
            invert_mask=invert_mask, mask_colour=mask_colour, colour_tolerance=colour_tolerance,
        )  # fmt: skip
        common.run("inpaint", inputs, PICTURES, task, named)


@group.command(epilog=STATUSES)
def ct(
    inputs: Inputs,
    output: Output,
    quantity: Annotated[
        Quantities | None, typer.Option(help="What the numbers are, if not as the file says.")
    ] = None,
    flat: Annotated[
        str | None, typer.Option(help="Readings without object: a number, or an NPY file.")
    ] = None,
    dark: Annotated[
        str | None, typer.Option(help="Readings without beam: a number, or an NPY file.")
    ] = None,
    photons: Annotated[
        float | None,
        typer.Option(
            help="In a free ray, for transmissions and line integrals; estimated unless given."
        ),
    ] = None,
    background: Annotated[
        float | None, typer.Option(help="r of emission counts y ~ Poisson(A x + r).")
    ] = None,
    sigma: Annotated[
        float | None, typer.Option(help="Noise of line integrals, if the same in all rays.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Pixels of a side; as many as bins unless given.")
    ] = None,
    extent: Annotated[
        float | None, typer.Option(help="Side in mm; the field of view unless given.")
    ] = None,
    water: Annotated[float, typer.Option(help="Attenuation of water in 1/mm, for HU.")] = WATER,
    angle_unit: Annotated[
        AngleUnits | None, typer.Option(help="Of HDF5 files that do not say it.")
    ] = None,
    rows: Annotated[
        str | None, typer.Option(help="Of the detector, FIRST:END; all unless given.")
    ] = None,
    window: Annotated[
        str, typer.Option(help=f"Of PNG results: {', '.join(WINDOWS)}, or LEVEL,WIDTH in HU.")
    ] = "abdomen",
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Inputs are slices; simulate a scan with counts.")
    ] = False,
    views: Annotated[int, typer.Option(help="Of a simulated scan.")] = 200,
    bins: Annotated[int, typer.Option(help="Of a simulated scan.")] = 400,
    seed: Annotated[int, typer.Option(help="Of simulated noise.")] = 0,
    truth: Annotated[
        Path | None, typer.Option(help="Slices in HU of the result's size; gives PSNR.")
    ] = None,
    regularizer: Regularizer = CT,
    weight: Annotated[
        str | None,
        typer.Option(
            help="As for denoise; auto unless given, card (which is for the simulated scan) with "
            "--simulate."
        ),
    ] = None,
    tolerance: Tolerance = 1e-3,
    time_limit: TimeLimit = None,
    max_iterations: MaxIterations = 2000,
    method: MethodOption = DEFAULT_METHOD,
    device: DeviceOption = Device.auto,
    batch: Batch = "auto",
    gap_map: GapMap = False,
    proof: ProofOption = False,
    force: Force = False,
    resume: Resume = False,
    max_megapixels: MaxMegapixels = None,
    read_seconds: Annotated[
        float | None,
        typer.Option(help="For reading an HDF5 file; unless given, 20 and 1 for every 10 MB."),
    ] = None,
    json_file: Json = None,
    debug: Debug = False,
) -> None:
    """Slices from sinograms, as HU in TIFF, DICOM, NPY or PNG.

    Sinograms are HDF5 (Data Exchange), or NPY or TIFF with their geometry in a JSON file beside
    them: counts with flat and dark fields, transmissions, or line integrals. Not for diagnosis.
    """
    rule = weight or ("card" if simulate else "auto")
    common = _Common(output, regularizer, rule, tolerance, time_limit, max_iterations,
                     method.value, device, batch, gap_map, proof, force, resume, json_file,
                     debug)  # fmt: skip
    with one_sentence_errors(debug):
        scans = checked(
            Scans,
            None if quantity is None else quantity.value,
            flat, dark, photons, background, sigma, size, extent, water,
            None if angle_unit is None else angle_unit.value,
            read_rows(rows), read_window(window), simulate, views, bins, seed, truth,
            max_megapixels, read_seconds,
        )  # fmt: skip
        suffixes = (*DICOM, ".tif", ".tiff", ".png", ".npy") if simulate else SINOGRAMS
        ending = None if simulate else ".tif"
        common.run("ct", inputs, suffixes, scans, facts(scans), ending)


class _Common:
    """The options of all three commands, checked, and what is done with them."""

    def __init__(
        self, output: Path, regularizer: str, weight: str, tolerance: float,
        time_limit: float | None, max_iterations: int, method: str, device: Device, batch: str,
        gap_map: bool, proof: bool, force: bool, resume: bool, json_file: str | None, debug: bool,
    ) -> None:  # fmt: skip
        self.output, self.regularizer, self.weight = output, regularizer, weight
        self.tolerance, self.time_limit = tolerance, time_limit
        self.max_iterations, self.method, self.device = max_iterations, method, device
        self.batch, self.gap_map, self.force, self.resume = batch, gap_map, force, resume
        self.proof, self.json_file, self.debug = proof, json_file, debug

    def run(
        self, task: str, inputs: list[str], suffixes: tuple[str, ...], preparation: Preparation,
        named: dict[str, Any], ending: str | None = None,
    ) -> None:  # fmt: skip
        """Check everything that can be checked, then go through the files."""
        if self.force and self.resume:
            raise UserError(
                "--resume keeps finished results and --force replaces them. Leave one of them out."
            )
        stop = stopping(self.tolerance, self.max_iterations, self.time_limit)
        sources = checked(find_sources, inputs, self.output, suffixes, ending)
        checked(preparation.check, sources)
        saved = [file for file in checked(pair, self.regularizer) if file.is_file()]
        checked(
            check_targets, sources, force=self.force, resume=self.resume, gap_map=self.gap_map,
            proof=self.proof, also_read=[*preparation.reads(sources), *saved],
            summary=None if self.json_file in (None, "-") else Path(str(self.json_file)),
        )  # fmt: skip
        network, digest = _network(self.regularizer)
        place = choose_device(self.device)
        engine = checked(
            Engine,
            network.to(place),
            place,
            stop,
            self.method,
            read_weight(self.weight),
            read_batch(self.batch),
            self.gap_map,
            self.proof,
            search=CT_SEARCH if task == "ct" else SEARCH,
        )  # fmt: skip
        settings = {
            "task": task, "regularizer": self.regularizer, "sha256": digest,
            "weight": self.weight, "tolerance": self.tolerance, "time_limit": self.time_limit,
            "max_iterations": self.max_iterations, "method": self.method, "device": str(place),
            **named, "version": convexlift.__version__,
            "command": f"convexlift {shlex.join(sys.argv[1:])}",
        }  # fmt: skip
        with Narrator(to_stderr=self.json_file == "-", debug=self.debug, total=len(sources),
                      tolerance=self.tolerance) as narrator, warnings.catch_warnings():  # fmt: skip
            warnings.showwarning = narrator.warn
            try:
                outcome = reconstruct(
                    sources, preparation, engine, settings, narrator, resume=self.resume
                )
            except KeyboardInterrupt:
                raise Interrupted("Interrupted twice; only finished files are kept.") from None
            narrator.summarise(outcome)
        unwritten = self._write_json(as_json(outcome, settings)) or narrator.unsaid
        self._finish(outcome, sources, unwritten)

    def _write_json(self, content: dict[str, Any]) -> str:
        """Why it could not be written, if it could not."""
        try:
            if self.json_file == "-":
                print_json(content)
            elif self.json_file is not None:
                write_json(Path(self.json_file), content)
        except OSError as error:
            if self.json_file == "-":
                discard(sys.stdout)
            where = "Standard output" if self.json_file == "-" else self.json_file
            return f"{where} cannot be written ({error.strerror or error})"
        return ""

    def _finish(self, outcome: Outcome, sources: list[Source], unwritten: str) -> None:
        if outcome.interrupted:
            raise Interrupted(
                f"Interrupted; {len(outcome.records)} of {len(sources)} results are written, the "
                "last one with the gap it had. --resume does the others."
                if outcome.records
                else "Interrupted; nothing was written."
            )
        if unwritten:
            raise Failed(
                f"{unwritten}; {len(outcome.records)} of {len(sources)} results are written, each "
                "with its JSON file."
            )
        if outcome.failures:
            raise typer.Exit(FAILURE)


def _network(name: str) -> tuple[InputConvexNetwork, str | None]:
    """The regularizer and the hash of its weights."""
    if name == "tv":
        return TotalVariation(), None
    return checked(load, name), checked(sheet, name).sha256
