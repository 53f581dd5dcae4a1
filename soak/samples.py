"""Small valid files of every kind that the library reads, and the functions that read them.

A new reader is one line in ``READERS``.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pydicom
import safetensors.numpy
import tifffile
import torch
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset

import convexlift as cl
from convexlift import proofs
from convexlift.files.pictures import read_plane
from convexlift.files.png_jpeg import with_deep_colours
from convexlift.networks import AdaptiveNetwork, Convolution, UNetGuide
from convexlift.reconstruction.contents import open_contents
from convexlift.training.run_files import (
    Checkpoint,
    load_checkpoint,
    restore_optimiser,
    restoring,
    save_checkpoint,
)
from soak.mutations import (
    GENERAL,
    Mutation,
    damaged,
    edit_tiff_entry,
    edit_word,
    with_damaged_pickle,
    with_hash,
    with_png_checksums,
)

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Reader:
    """A kind of file and how it is attacked.

    Attributes:
        name: of the row, for reports.
        ending: of the file's name.
        make: writes a valid sample.
        reads: functions that read it, each of which must accept or refuse every file.
        share: of all mutations, relative to those of the other rows.
        mutations: that are applied.
        repair: makes checksums right after a mutation.
        contained: whether the library runs these functions in a process with limits, which turns
            a crash, a hang, or the use of too much memory into an error: here, no violation.
    """

    name: str
    ending: str
    make: Callable[[Path], object]
    reads: tuple[Read, ...]
    share: float = 1.0
    mutations: tuple[Mutation, ...] = GENERAL
    repair: Callable[[bytes], bytes] | None = None
    contained: bool = False


def mutated(reader: Reader, sample: dict[str, bytes], chance: random.Random) -> dict[str, bytes]:
    """The files of a sample, by name, with one of them damaged."""
    files = dict(sample)
    name = chance.choice(sorted(files))
    if reader.name == "checkpoint" and chance.random() < 0.5:
        return {name: with_damaged_pickle(files[name], chance)}
    words = (
        (*reader.mutations, edit_word, edit_word) if name.endswith(".json") else reader.mutations
    )
    files[name] = damaged(files[name], words, chance)
    if reader.repair is not None and chance.random() < 0.7:
        files[name] = reader.repair(files[name])
    if reader.name.endswith("model") and chance.random() < 0.9:
        weights = next(files[n] for n in files if n.endswith(".safetensors"))
        sheet = next(n for n in files if n.endswith(".json"))
        files[sheet] = with_hash(files[sheet], hashlib.sha256(weights).hexdigest())
    return files


# Samples -----------------------------------------------------------------------------------------


def _numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape)


def _bytes(*shape: int) -> Any:
    return (255 * _numbers(*shape)).astype(np.uint8)


def _words(*shape: int) -> Any:
    return (65535 * _numbers(*shape)).astype(np.uint16)


def _picture(pixels: Any, **options: Any) -> Callable[[Path], object]:
    return lambda path: Image.fromarray(pixels).save(path, **options)


def _turned(path: Path) -> None:
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(_bytes(24, 20, 3)).save(path, exif=exif, dpi=(72, 72))


def _deep_png(path: Path) -> None:
    shallow = io.BytesIO()
    Image.fromarray(_bytes(24, 20, 3)).save(shallow, format="PNG")
    path.write_bytes(with_deep_colours(shallow.getvalue(), _words(24, 20, 3)))


def _tiff(array: Any, **options: Any) -> Callable[[Path], object]:
    return lambda path: tifffile.imwrite(path, array, **options)


def _npy(array: Any) -> Callable[[Path], object]:
    return lambda path: np.save(path, array)


def _volume(path: Path) -> None:
    cl.scans.write_tiff(cl.scans.Volume.stacked(torch.ones(2, 12, 12), (1.0, 1.0)), path)


def _slice_png(path: Path) -> None:
    cl.scans.write_png(cl.scans.Volume.stacked(torch.ones(1, 12, 12), (1.0, 1.0)), path, bits=16)


def _dicom(syntax: pydicom.uid.UID) -> Callable[[Path], object]:
    def make(path: Path) -> None:
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.2"
        meta.MediaStorageSOPInstanceUID = "1.2.3.4"
        packed = syntax == pydicom.uid.RLELossless
        meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian if packed else syntax
        dataset = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, "1.2.3.4"
        dataset.SeriesInstanceUID, dataset.StudyInstanceUID = "1.2.3", "1.2"
        dataset.Modality, dataset.PatientName = "CT", "Nobody"
        dataset.Rows, dataset.Columns, dataset.SamplesPerPixel = 12, 12, 1
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 16, 15
        dataset.PixelRepresentation, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.PixelSpacing, dataset.SliceThickness = [1.5, 1.5], 2
        dataset.ImagePositionPatient = [0, 0, 0]
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.RescaleSlope, dataset.RescaleIntercept, dataset.PixelPaddingValue = 1, -1024, -2000
        dataset.PixelData = np.arange(144, dtype=np.int16).tobytes()
        if packed:
            dataset.compress(syntax, generate_instance_uid=False)
        dataset.save_as(path, enforce_file_format=True)

    return make


def _sinogram() -> cl.scans.Sinogram:
    geometry = cl.scans.ParallelGeometry(angles=tuple(0.1 * i for i in range(10)), bin_width=0.5)
    frames = torch.from_numpy(_numbers(2, 10, 12)).float()
    flat = torch.ones(2, 1, 12)
    return cl.scans.Sinogram(frames, geometry, "counts", flat=flat, dark=0 * flat)


def _scan(path: Path) -> None:
    cl.scans.write_sinogram(_sinogram(), path)


def _npy_scan(path: Path) -> None:
    """Without the hashes of the arrays, which would refuse them before they are read."""
    _scan(path)
    record = json.loads(path.with_suffix(".json").read_text())
    for entry in record["arrays"].values():
        del entry["sha256"]
    path.with_suffix(".json").write_text(json.dumps(record))


def _packed_scan(path: Path) -> None:
    """Chunks and compression, which ``write_sinogram`` does not use."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset(
            "exchange/data", data=_words(10, 2, 12), chunks=(5, 1, 12), compression="gzip"
        )
        data.attrs["axes"] = "theta:y:x"
        file["exchange/theta"] = np.linspace(0, 90, 10)
        file["exchange/theta"].attrs["units"] = "deg"


def _tiff_scan(path: Path) -> None:
    tifffile.imwrite(path, _words(2, 10, 12))
    record = {
        "format": "convexlift sinogram", "version": 1, "quantity": "counts",
        "geometry": {"beam": "parallel", "angles": [0.1 * i for i in range(10)]},
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(record))


def _network() -> cl.InputConvexNetwork:
    torch.manual_seed(0)
    return cl.networks.ridge(channels=2, kernel=3)


def _model(path: Path) -> None:
    card = cl.ModelCard(name="toy", summary="A toy.", task="denoising", weight=0.5)
    cl.save(_network(), path.with_suffix(""), card)


def _adaptive() -> AdaptiveNetwork:
    """Two layers, and a guide: filters, nonnegative maps and others that fill 8-bit tensors."""
    torch.manual_seed(0)
    first = cl.ConvexLayer(cl.Abs(), channels=12, skip=Convolution(1, 12, 11), bias=False)
    maps = Convolution(12, 12, 3, nonnegative=True)
    second = cl.ConvexLayer(cl.ReLU(), channels=12, previous=maps, bias=False)
    return AdaptiveNetwork([first, second], UNetGuide(1, 12, widths=(8, 16), blocks=1))


def _small_model(path: Path) -> None:
    cl.save(_adaptive(), path.with_suffix(""), eight_bit=True)


def _load(path: Path) -> None:
    """A network that was accepted is convex, as far as its numbers say."""
    network = cl.load(path)
    maps = [layer.previous.weight for layer in network.layers if layer.previous is not None]
    assert all(bool(torch.isfinite(tensor).all()) for tensor in network.state_dict().values())
    assert min(float(tensor.detach().min()) for tensor in (network.output, *maps)) >= 0


def _adaptive_proof(path: Path) -> None:
    torch.manual_seed(0)
    fidelity = cl.SquaredL2(torch.rand(1, 1, 6, 6))
    network = cl.networks.adaptive(channels=2, kernel=3, widths=(2,), blocks=1)
    problem = cl.VariationalProblem(fidelity=fidelity, regularizer=network, weight=1.0, noise=0.1)
    cl.solve(problem).proof.save(path)


def _proof(path: Path) -> None:
    y = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scanner = cl.ParallelBeam(image_size=8, angles=3, bins=5)
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(torch.poisson(20 * scanner(y)), 1.0),
        operator=20.0 * scanner, regularizer=_network(), weight=0.1, box=(0, 1),
    )  # fmt: skip
    cl.solve(problem).proof.save(path)


def _resealed(data: bytes) -> bytes:
    """A proof file whose digests fit, as far as it can still be read."""
    try:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        head = json.loads(header["__metadata__"]["convexlift_proof"])
        return proofs.sealed(head, safetensors.numpy.load(data))
    except Exception:  # then the reader is to refuse it
        return data


def _optimiser(network: torch.nn.Module) -> torch.optim.Adam:
    return torch.optim.Adam(network.parameters())


def _checkpoint(path: Path) -> None:
    network = _network()
    optimiser = _optimiser(network)
    network(torch.ones(1, 1, 8, 8)).sum().backward()
    optimiser.step()
    state = network.state_dict()
    best = {"psnr": 30.0, "ssim": 0.9, "weight": 1.0, "step": 1, "misses": 0,
            "network": state, "objective": {}}  # fmt: skip
    rows = [{"step": 1.0, "loss": 0.5}]
    save_checkpoint(
        path,
        Checkpoint(1, state, {}, optimiser.state_dict(), best, rows, {"options": "none"}, 1.0,
                   torch.Generator().manual_seed(0).get_state(), 1.0),
    )  # fmt: skip


# Readers -----------------------------------------------------------------------------------------


def _contents(path: Path) -> None:
    """Read as ``convexlift reconstruct`` does, and write the result again."""
    contents = open_contents(path)
    contents.require_target(path)
    contents.write(contents.images, path.with_name(f"again{path.suffix}"), "soak")


def _restore(path: Path) -> None:
    checkpoint = load_checkpoint(path)
    network = _network()
    with restoring(path):
        network.load_state_dict(checkpoint.network)
        restore_optimiser(_optimiser(network), checkpoint.optimiser)
        torch.set_rng_state(checkpoint.generator)


PICTURES: tuple[Read, ...] = (_contents, read_plane)
SLICES: tuple[Read, ...] = (_contents, cl.scans.read_stack)
SCANS: tuple[Read, ...] = (cl.scans.read_sinogram,)
SLICE: tuple[Read, ...] = (_contents,)
ENTRIES = (*GENERAL, edit_tiff_entry, edit_tiff_entry, edit_tiff_entry)
TEXT = (*GENERAL, edit_word)
CRC = with_png_checksums

READERS = (
    Reader("png 8 bit", ".png", _picture(_bytes(24, 20)), PICTURES, repair=CRC),
    Reader("png 16 bit", ".png", _picture(_words(24, 20)), PICTURES, repair=CRC),
    Reader("png colour", ".png", _picture(_bytes(24, 20, 4)), PICTURES, repair=CRC),
    Reader("png 16 bit colour", ".png", _deep_png, PICTURES, repair=CRC),
    Reader("png slice", ".png", _slice_png, SLICES, 0.5, repair=CRC),
    Reader("jpeg", ".jpg", _turned, PICTURES),
    Reader("tiff", ".tif", _tiff(_words(24, 20)), PICTURES, mutations=ENTRIES),
    Reader("tiff colour", ".tif", _tiff(_bytes(24, 20, 3)), PICTURES, mutations=ENTRIES),
    Reader("tiff tiled", ".tif", _tiff(_bytes(32, 32), tile=(16, 16)), PICTURES, mutations=ENTRIES),
    Reader("tiff packed", ".tif", _tiff(_words(24, 20), compression="zlib"), PICTURES,
           mutations=ENTRIES),
    Reader("tiff stack", ".tif", _tiff(_words(3, 16, 16)), (_contents,), mutations=ENTRIES),
    Reader("tiff slices", ".tif", _volume, SLICES, mutations=ENTRIES),
    Reader("npy", ".npy", _npy(_numbers(12, 12)), PICTURES, 1.0, TEXT),
    Reader("dicom", ".dcm", _dicom(pydicom.uid.ExplicitVRLittleEndian), SLICE, 2.0),
    Reader("dicom rle", ".dcm", _dicom(pydicom.uid.RLELossless), SLICE),
    Reader("dicom deflated", ".dcm", _dicom(pydicom.uid.DeflatedExplicitVRLittleEndian), SLICE,
           0.5),
    Reader("hdf5 scan", ".h5", _scan, SCANS, 0.1, contained=True),
    Reader("hdf5 packed scan", ".h5", _packed_scan, SCANS, 0.1, contained=True),
    Reader("npy scan", ".npy", _npy_scan, SCANS, 1.0, TEXT),
    Reader("tiff scan", ".tif", _tiff_scan, SCANS, 1.0, ENTRIES),
    Reader("model", ".safetensors", _model, (_load,), 2.0, TEXT),
    Reader("8-bit model", ".safetensors", _small_model, (_load,), 1.0, TEXT),
    Reader("proof", ".proof", _proof, (cl.verify,), 2.0, TEXT, repair=_resealed),
    Reader("adaptive proof", ".proof", _adaptive_proof, (cl.verify,), 1.0, TEXT, repair=_resealed),
    Reader("checkpoint", ".pt", _checkpoint, (_restore,), 1.0),
)  # fmt: skip
"""All readers, one in each row."""
