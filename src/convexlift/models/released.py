"""The weight files of the paper's authors: state dicts of PyTorch, as they publish them.

Names and shapes are those of ``models.py`` in their repository (github.com/hsw43/icnn_primal_dual,
commit 873d50b): a convolution ``wx`` on the image, in the deeper network nonnegative convolutions
``wz``, then average pooling of 16 x 16, and the dense layers ``fc1`` and ``fc2``.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import torch
from torch import Tensor

from convexlift.json_values import listed
from convexlift.models.files import naming
from convexlift.networks.architectures import baseline, deep
from convexlift.networks.icnn import InputConvexNetwork

ENDINGS = (".pt", ".pth")
POOL, SLOPE, SMOOTHING = 16, 0.2, 0.01
"""Constants of the authors' code that a state dict does not contain."""


def read_released(path: Path) -> InputConvexNetwork:
    """The network of an authors' file, without the constant ``fc2.bias``, which moves no minimiser.

    Activations are smoothed if the name of the file says so, as the authors name theirs
    (``reg_smoothed_icnn_ip_BL-PD.pt``). Negative entries of the nonnegative layers become 0, as
    they do in the authors' network before it is evaluated.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    with naming(path):
        tensors = _read(path)
        return _network(tensors, SMOOTHING if "smoothed" in path.name else 0.0)


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors, by name; nothing in the file is executed."""
    advice = "give a state dict written by torch.save, or a model written by convexlift.save"
    try:
        with warnings.catch_warnings(action="ignore"):  # about the protocols of pickles
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's reader raises IndexError and others for damaged files
        # Its own words are left out: they advise to load what could run code all the same.
        reason = f"damaged, or with objects that could run code: {type(error).__name__}"
        raise ValueError(f"not a file of weights alone ({reason}); {advice}") from None
    if not isinstance(content, dict) or not all(
        isinstance(each, Tensor) and each.is_floating_point() for each in content.values()
    ):
        raise ValueError(f"it does not hold named tensors of numbers only; {advice}")
    for name, tensor in content.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise ValueError(f"{name} claims {tensor.numel():,} numbers, and the file has fewer")
    return {str(name).removeprefix("icnn."): tensor for name, tensor in content.items()}


def _network(tensors: dict[str, Tensor], smoothing: float) -> InputConvexNetwork:
    names = ["wx", "fc1", "fc2"]
    if any(name.startswith("wz.") for name in tensors):
        names[1:1] = ["wz.0", "wz.1"]
    wanted = {f"{name}.{kind}" for name in names for kind in ("weight", "bias")}
    if wanted != tensors.keys():
        raise ValueError(
            "not a network of the paper's authors, the only state dicts that are read: they have "
            f"the tensors {listed(sorted(wanted))}, this file has {listed(sorted(tensors))}; other "
            "networks are written by convexlift.save"
        )
    filters, dense = tensors["wx.weight"], tensors["fc1.weight"]
    if filters.ndim != 4 or dense.ndim != 2 or not filters.numel() or not dense.numel():
        raise ValueError(
            f"wx.weight must be filters (C, 1, K, K) and fc1.weight a matrix, got shapes "
            f"{tuple(filters.shape)} and {tuple(dense.shape)}"
        )
    channels, kernel = filters.shape[0], filters.shape[-1]
    side = math.isqrt(dense.shape[-1] // channels)
    make = baseline if len(names) == 3 else deep
    network = make(
        POOL * max(side, 1), in_channels=filters.shape[1], channels=channels, kernel=kernel,
        pool=POOL, hidden=dense.shape[0], slope=SLOPE, smoothing=smoothing,
    )  # fmt: skip
    state = {"output": tensors["fc2.weight"].flatten().clamp_min(0)}
    for i, name in enumerate(names[:-1]):
        weight = tensors[f"{name}.weight"]
        place = "skip" if i == 0 else "previous.maps.1" if name == "fc1" else "previous"
        state[f"layers.{i}.bias"] = tensors[f"{name}.bias"]
        state[f"layers.{i}.{place}.weight"] = weight if i == 0 else weight.clamp_min(0)
    for name, tensor in network.state_dict().items():
        if state[name].shape != tensor.shape:
            raise ValueError(
                f"its tensors do not fit together: {name} would be {tuple(state[name].shape)} "
                f"instead of {tuple(tensor.shape)}"
            )
        if not bool(state[name].isfinite().all()):
            raise ValueError(f"{name} has entries that are not finite")
    network.load_state_dict(state)
    return network
