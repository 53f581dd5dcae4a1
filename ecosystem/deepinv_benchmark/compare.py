"""The solver file beside deepinv's own denoisers, on pictures of this package: ``python FILE``.

PSNR in dB with noise 0.1, as in deepinv's benchmark of denoising. Denoisers with a parameter get
the one that is best for these pictures, by the truth; ours knows the noise level only. Networks
with downloaded weights (DnCNN, DRUNet) are left out. Needs ``ptwt`` and ``bm3d``.
"""

from __future__ import annotations

import deepinv
import torch

import convexlift as cl
from convexlift.images import load_example, psnr

NOISE = 0.1


def pictures() -> torch.Tensor:
    """Two crops of the package's picture with made-up colours, (2, 3, 96, 96)."""
    grey = load_example("camera")
    crops = torch.cat([grey[..., 16:112, 80:176], grey[..., 120:216, 40:136]])
    return torch.cat([crops, crops**1.5, 0.5 * crops + 0.2], dim=1)


def main() -> None:
    """Print a table."""
    x = pictures()
    physics = deepinv.physics.Denoising(
        deepinv.physics.GaussianNoise(NOISE, rng=torch.Generator().manual_seed(0))
    )
    y = physics(x)

    def ours(regularizer: cl.InputConvexNetwork, weight: float) -> torch.Tensor:
        model = cl.deepinv.CertifiedReconstructor(regularizer, weight, box=(0, 1))
        return model(y, physics)

    joint = cl.TotalVariation(in_channels=3, joint=True)
    single = {
        "noisy": lambda: y,
        "convexlift, photo-open-colour": lambda: ours(cl.load("photo-open-colour"), 1.0),
        "convexlift, TV": lambda: ours(joint, 0.9 * NOISE),
        "BM3D": lambda: deepinv.models.BM3D()(y, NOISE),
    }
    wavelets = {"level": 3, "list_wv": ["db1", "db4", "db8"], "max_iter": 20}
    weak = (0.03, 0.05, 0.07, 0.1, 0.14, 0.2)
    searched = {
        "TVDenoiser": (deepinv.models.TVDenoiser(n_it_max=500), weak),
        "TGVDenoiser": (deepinv.models.TGVDenoiser(n_it_max=500), (0.2, 0.5, 1.0, 2.0)),
        "WaveletDictDenoiser": (deepinv.models.WaveletDictDenoiser(**wavelets), weak),
    }
    print("| denoiser | PSNR, dB |\n|---|---|")
    for name, restored in single.items():
        with torch.no_grad():
            print(f"| {name} | {float(psnr(restored(), x).mean()):.2f} |", flush=True)
    for name, (denoiser, strengths) in searched.items():
        with torch.no_grad():
            found = [float(psnr(denoiser(y, s), x).mean()) for s in strengths]
        print(f"| {name}, best of {len(found)} strengths | {max(found):.2f} |", flush=True)


if __name__ == "__main__":
    main()
