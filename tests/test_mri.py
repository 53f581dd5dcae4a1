"""Samples of the Fourier transform: the definition, complex images, coils, proofs."""

from __future__ import annotations

import math

import pytest
import torch
from parts import coil_maps, sampled

import convexlift as cl
from convexlift.images import psnr
from convexlift.phantoms import shepp_logan

SHAPE = (2, 6, 7)


def test_it_is_the_fourier_transform_of_the_definition():
    """The sum over all pixels, with both origins in the middle."""
    x = torch.randn(1, *SHAPE)
    image, maps = torch.complex(x[0, 0], x[0, 1]), coil_maps(SHAPE)
    _, height, width = SHAPE
    p, q = (torch.arange(n) - n // 2 for n in (height, width))
    rows = torch.exp(-2j * math.pi * torch.outer(p, p) / height)
    columns = torch.exp(-2j * math.pi * torch.outer(q, q) / width)
    data = cl.MRI(sampled(SHAPE), maps)(x)
    for k in range(2):
        expected = rows @ (maps[k] * image) @ columns.T / math.sqrt(height * width)
        expected = expected * sampled(SHAPE)
        torch.testing.assert_close(data[0, 2 * k], expected.real)
        torch.testing.assert_close(data[0, 2 * k + 1], expected.imag)


def test_real_images_are_complex_ones_without_imaginary_part():
    x = torch.randn(2, 1, *SHAPE[1:])
    complex_ones = cl.MRI(sampled(SHAPE), coil_maps(SHAPE))
    real = cl.MRI(sampled(SHAPE), coil_maps(SHAPE), channels=1)
    both = torch.cat((x, torch.zeros_like(x)), 1)
    torch.testing.assert_close(real(x), complex_ones(both))
    y = torch.randn(2, 4, *SHAPE[1:])
    torch.testing.assert_close(real.adjoint(y), complex_ones.adjoint(y)[:, :1])


def test_everything_sampled_is_inverted_exactly():
    x, maps = torch.randn(1, *SHAPE), coil_maps(SHAPE)
    A = cl.MRI(torch.ones(SHAPE[1:]), maps)
    torch.testing.assert_close(A.approximate_inverse(A(x)), x)
    assert A.norm() == pytest.approx(float(maps.abs().square().sum(0).max().sqrt()))


def test_masks_and_maps_for_each_image_are_selected_with_it():
    masks = torch.stack([sampled(SHAPE), 1 - sampled(SHAPE)])[:, None]
    maps = torch.stack([coil_maps(SHAPE), 2j * coil_maps(SHAPE)])
    A, x = cl.MRI(masks, maps), torch.randn(2, *SHAPE)
    for i in range(2):
        alone = A.select(torch.tensor([i]))
        torch.testing.assert_close(alone(x[i : i + 1]), A(x)[i : i + 1])
    cl.check_operator(A)


def test_complex_images_are_certified_and_proven(tmp_path):
    generator = torch.Generator().manual_seed(0)
    truth = torch.cat([shepp_logan(32)] * 2, 1) * torch.tensor([0.8, 0.6]).reshape(1, 2, 1, 1)
    mask = torch.rand(32, generator=generator) < 0.4
    mask[12:20] = True
    A = cl.MRI(mask.expand(32, 32).to(truth), coil_maps((2, 32, 32)).to(torch.complex128))
    noise = 0.02 * torch.randn(A(truth).shape, generator=generator)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(A(truth) + A.mask * noise), operator=A, weight=0.01,
        regularizer=cl.TotalVariation(in_channels=2, joint=True), box=(-2, 2),
    )  # fmt: skip
    solution = cl.solve(problem)
    assert solution.guarantee == (cl.Guarantee.GLOBAL,)
    assert solution.gap <= 1e-3
    zero_filled = A.approximate_inverse(problem.fidelity.y)
    assert psnr(solution.x, truth) > psnr(zero_filled, truth) + 5
    assert cl.verify(solution.proof.save(tmp_path / "x.proof"))


def test_joint_variation_is_the_norm_of_all_differences():
    x = torch.randn(1, 2, 5, 5)
    down = x.diff(dim=-2, append=x[..., -1:, :])
    right = x.diff(dim=-1, append=x[..., -1:])
    expected = (down.square() + right.square()).sum(1).sqrt().sum()
    joint = cl.TotalVariation(in_channels=2, joint=True)
    torch.testing.assert_close(joint(x)[0], expected)
    turned = torch.stack((-x[:, 1], x[:, 0]), 1)  # times i
    torch.testing.assert_close(joint(turned), joint(x))
    with pytest.raises(ValueError, match="isotropic"):
        cl.TotalVariation(isotropic=False, joint=True)


def test_bad_masks_and_maps_are_named():
    mask = sampled(SHAPE)
    with pytest.raises(ValueError, match=r"\(H, W\) or \(B, 1, H, W\), got \(7,\)"):
        cl.MRI(mask[0])
    with pytest.raises(ValueError, match=r"only 1 \(sampled\) and 0"):
        cl.MRI(0.5 * mask)
    with pytest.raises(ValueError, match="channels is 2 for complex images"):
        cl.MRI(mask, channels=3)
    with pytest.raises(ValueError, match=r"maps of MRI are complex, .* got \(1, 4, 6, 6\)"):
        cl.MRI(mask, coil_maps(SHAPE)[..., :6])
    with pytest.raises(ValueError, match="maps of MRI are nan"):
        cl.MRI(mask, torch.nan * coil_maps(SHAPE))
    with pytest.raises(ValueError, match=r"expects inputs of shape \(batch, 2, 6, 7\)"):
        cl.MRI(mask)(torch.zeros(1, 1, 6, 7))
