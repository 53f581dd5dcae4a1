"""``load``: detection of a file's format, its conversion, and the card that states its origin."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import torch

from convexlift.json_values import listed
from convexlift.models.files import ModelCard, PathLike, naming
from convexlift.models.interop import deep, ridge
from convexlift.models.interop.state_dicts import (
    WEAKLY_CONVEX,
    Format,
    Source,
    read_config,
    read_tensors,
)
from convexlift.networks.icnn import InputConvexNetwork

ENDINGS = (".pt", ".pth")
FORMATS: dict[str, Format] = {each.name: each for each in (*deep.FORMATS, *ridge.FORMATS)}
"""The formats, by name."""
REFUSED = (
    (r"(^|\.)icnn1\.", "a difference of two convex networks (IDCNN), which is not convex"),
    (r"(^|\.)(K1\.weight|mb\.\d+\.)", "a total deep variation (TDV), which is not convex"),
    (
        r"(^|\.)m_(head|down\d|body|up\d|tail)\b",
        "a DRUNet: a denoiser, or the potential of one (GS-DRUNet, LSR, NETT), which is not convex",
    ),
    (r"(^|\.)(in_conv|conv_list\.\d+|out_conv)\.weight$", "a DnCNN: a denoiser, and no function R"),
    (
        r"(^|\.)(convnet|cnn)\.\d+\.",
        "a convolutional network with weights of any sign (AR, local AR), which is not convex",
    ),
    (
        r"^(wx\.0\.weight|ICNN_layer_\d|(L2net\.)?(l2_)?penalty$)",
        "a part of an adversarial convex regularizer (ACR), which versions from 0.2 on do not read",
    ),
)
"""Names of tensors that identify networks without a conversion, and the reasons."""
PUBLISHED = "published objective"
"""The task of the cards: data term plus R, both as the authors define them."""


def load(
    path: PathLike,
    format: str | None = None,
    *,
    noise: float | None = None,
    strong_convexity: float | None = None,
    dtype: torch.dtype | None = None,
) -> InputConvexNetwork:
    """The regularizer in a file of its authors, converted exactly.

    Args:
        path: a state dict or checkpoint written by ``torch.save``, or a safetensors file.
        format: a name in ``FORMATS``; by default found from the names of the tensors.
        noise: the standard deviation of the noise, for ``goujon-crr-2024``, in units of the image.
        strong_convexity: mu of the term mu/2 |x|^2 of ``deepinv-icnn``; by default 0.5, as there.
        dtype: float32 or float64; by default the precision of the file.

    Returns:
        A network with a card that names its source.
    """
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    if format is not None and format not in FORMATS:
        raise ValueError(f"format {format!r} is unknown; known are {listed(FORMATS)}")
    given = {"noise": noise, "strong_convexity": strong_convexity}
    options = {name: value for name, value in given.items() if value is not None}
    path = Path(path)
    with naming(path):
        tensors = read_tensors(path)
        found = FORMATS[format] if format is not None else detect(tensors, path.name)
        for option in options:
            if option not in found.options:
                takers = [each.name for each in FORMATS.values() if option in each.options]
                raise ValueError(
                    f"{option}=... is for {listed(takers)}, and this is {found.name}; leave it out"
                )
        double = any(tensor.dtype is torch.float64 for tensor in tensors.values())
        exact = {each: tensor.double() for each, tensor in tensors.items()}
        source = Source(path, exact, read_config(path), **options)
        # Initial weights are drawn on the CPU, and do not change the global random numbers.
        with torch.random.fork_rng(devices=()), torch.device("cpu"), torch.no_grad():
            try:
                network = found.convert(source)
            except OverflowError:
                raise ValueError("a number in it is too large for its exponential") from None
        network.requires_grad_()
        network.to(dtype or (torch.float64 if double else torch.float32))
        if not all(bool(each.isfinite().all()) for each in network.parameters()):
            raise ValueError(
                f"its weights are too large for {network.output.dtype}; say dtype=torch.float64"
            )
        network.check_convexity()
    network.card = ModelCard(
        name=path.stem,
        summary=f"Converted from the format {found.name} ({found.holds}) of {found.authors}.",
        task=PUBLISHED,
        weight=1.0,
        weight_choice="the authors' objective",
        license=f"its authors' terms; {found.terms}",
        citation=found.authors,
    )
    return network


def detect(names: Collection[str], file: str = "") -> Format:
    """The format of a file with tensors of these names; ValueError explains why there is none."""
    words = re.split(r"[^a-z]", file.lower())
    for each in FORMATS.values():
        if each.fits(names):
            if not each.clue or each.clue in words:
                return each
            if f"w{each.clue}" in words:
                raise ValueError(f"by its name it is {WEAKLY_CONVEX}")
            raise ValueError(
                f"it is a convex ridge regularizer (CRR) or {WEAKLY_CONVEX}; if it is convex, say "
                f"format={each.name!r}"
            )
    for pattern, reason in REFUSED:
        if any(re.search(pattern, name) for name in names):
            raise ValueError(f"it holds {reason}")
    some = sorted(names)[:4]
    raise ValueError(
        f"not a regularizer of a known format: its tensors are {listed(some)}"
        f"{', ...' if len(names) > 4 else ''}; known formats are {listed(FORMATS)}, other "
        "networks are written by convexlift.save"
    )
