"""A weakly convex ridge regularizer from its file to the restored picture.

The file has the layout of Goujon, Neumayer and Unser (2024), with cosine filters and a potential
that rises, then bends down to a constant. The other solver is accelerated gradient descent on the
published definition, written out in torch.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import published_regularizers
import pytest
import torch
from PIL import Image
from published_regularizers import ORIGINAL, goujon_wcrr

import convexlift as cl
from convexlift.images import gaussian_noise, load_example, psnr

SIGMA = 25 / 255
KNOTS, REACH, RHO = 21, 0.3, 1.0


def cosines() -> torch.Tensor:
    """The eight 3 x 3 cosine functions without mean, in the middle of 5 x 5 kernels."""
    n = torch.arange(3) + 0.5
    rows = torch.stack([torch.cos(math.pi * k * n / 3) for k in range(3)])
    rows = rows / rows.norm(dim=1, keepdim=True)
    planes = torch.einsum("ai,bj->abij", rows, rows).reshape(9, 1, 3, 3)[1:]
    return torch.nn.functional.pad(planes, [1] * 4)


def odd_spline(first: float, last: float) -> torch.Tensor:
    """The values at the knots of an odd spline with slope 1 where first < |t| < last, else 0."""
    t = torch.linspace(-REACH, REACH, KNOTS)
    return (t.sign() * (t.abs().clamp(first, last) - first))[None]


def published_state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    mixing = torch.zeros(8, 8, 5, 5)
    mixing[torch.arange(8), torch.arange(8), 2, 2] = 1
    mixing += 0.02 * torch.randn(mixing.shape)
    return {
        "mu_": torch.tensor(math.log(4.0)),
        f"conv_layer.conv_layers.0.{ORIGINAL}": cosines(),
        "conv_layer.conv_layers.1.weight": mixing,
        "activation_cvx.coefficients": odd_spline(0.0, 0.03),
        "activation_ccv.coefficients": odd_spline(0.03, 0.15),  # psi' is 0 from there on
        "spline_scaling.coefficients": torch.full((8, 11), math.log(0.7 * 25)),
    }


def accelerated_descent(state, y: torch.Tensor, steps: int = 100) -> torch.Tensor:
    """Nesterov's method with restarts, on 1/2 |x - y|^2 + R(x) as published."""
    x = previous = y
    momentum, rate = 1.0, 1 / (1 + 4.0)  # the slope of psi' is at most 4, and |W| = 1
    for _ in range(steps):
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        z = (x + (momentum - 1) / following * (x - previous)).requires_grad_()
        (slope,) = torch.autograd.grad(goujon_wcrr(state, z, RHO).sum(), z)
        moved = z.detach() - rate * (z.detach() - y + slope)
        if float(((z.detach() - moved) * (moved - x)).sum()) > 0:
            following = 1.0
        previous, x, momentum = x, moved, following
    return x


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.setattr(published_regularizers, "NOISE", SIGMA)
    state = published_state()
    config = {
        "rho_wcvx": RHO, "noise_range": [0, 30],
        "spline_activation": {"x_min": -REACH, "x_max": REACH},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(state, tmp_path / "wcrr.pt")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
    return state, lambda **options: cl.interop.load(tmp_path / "wcrr.pt", noise=SIGMA, **options)


def picture(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    clean = load_example("camera")[..., 32 : 32 + size, 96 : 96 + size].double()
    return clean, gaussian_noise(clean, SIGMA, torch.Generator().manual_seed(0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [32, 64])
def test_the_restored_picture_is_that_of_another_solver(loaded, size):
    state, load = loaded
    clean, noisy = picture(size)
    problem = cl.WeaklyConvexProblem(fidelity=cl.SquaredL2(noisy), regularizer=load(), weight=1.0)
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5, max_iterations=20_000))
    other = accelerated_descent(state, noisy)
    value = (other - noisy).square().sum() / 2 + goujon_wcrr(state, other, RHO)
    assert float(solution.objective) == pytest.approx(float(value), rel=1e-5)
    assert float((solution.x - other).abs().max()) < 1e-2
    assert float((solution.x - other).square().mean().sqrt()) < 1e-3
    ours, theirs, before = (float(psnr(x, clean)) for x in (solution.x, other, noisy))
    assert ours == pytest.approx(theirs, abs=1e-2)
    assert ours > before + 3.5  # so that it is a denoiser
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL


def test_the_merged_regularizer_has_a_global_proof_and_nearly_the_same_picture(loaded, tmp_path):
    _, load = loaded
    clean, noisy = picture(48)
    solutions = []
    for options in ({"merge": True}, {}):
        problem = cl.WeaklyConvexProblem(
            fidelity=cl.SquaredL2(noisy), regularizer=load(**options), weight=1.0, box=(0, 1)
        )
        solutions.append(cl.solve(problem, stop=cl.StopWhen(gap=1e-3, max_iterations=20_000)))
    merged, chain = solutions
    assert merged.guarantee[0] is cl.Guarantee.GLOBAL
    (verdict,) = cl.verify(merged.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"
    assert float(psnr(merged.x, clean)) == pytest.approx(float(psnr(chain.x, clean)), abs=0.2)


@pytest.mark.slow
def test_one_command_gives_the_figures_of_a_published_file(loaded, tmp_path, capsys):
    from published_table import main

    folder = tmp_path / "pictures"
    folder.mkdir()
    clean, _ = picture(40)
    for i in range(2):
        Image.fromarray((clean[0, 0].roll(i, 1) * 255).byte().numpy()).save(folder / f"{i}.png")
    main([str(tmp_path / "wcrr.pt"), str(folder), "--sigmas", "25", "--gap", "1e-3"])
    line = capsys.readouterr().out
    assert "over 2 pictures" in line
    assert "(2 GLOBAL)" in line
    assert float(line.split(" dB")[0].split()[-1]) > 20.2 + 3.5
