"""Records of tensors: images of a batch selected and joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import pytest
import torch

import convexlift as cl
from convexlift.precision import full_precision
from convexlift.tensors import Blocks, join_images, select_images, sum_per_image


@dataclass(frozen=True)
class Numbers:
    x: torch.Tensor
    names: tuple[str, ...]
    duals: Blocks
    radius: float
    nothing: torch.Tensor | None = None


def numbers() -> Numbers:
    duals = Blocks({"a": torch.rand(4, 2), "b": torch.rand(4, 3, 3)})
    return Numbers(torch.rand(4, 1, 5, 5), ("p", "q", "r", "s"), duals, 2.0)


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_joined_parts_are_the_whole(cut):
    whole = numbers()
    parts = [select_images(whole, rows) for rows in (slice(0, cut), slice(cut, 4))]
    assert parts[0].names == whole.names[:cut]
    assert parts[0].duals["b"].shape == (cut, 3, 3)
    joined = join_images(parts)
    assert torch.equal(joined.x, whole.x)
    assert all(torch.equal(joined.duals[name], whole.duals[name]) for name in whole.duals)
    assert (joined.names, joined.radius, joined.nothing) == (whole.names, 2.0, None)


def test_other_fields_are_given():
    whole = numbers()
    assert select_images(whole, slice(0, 1), radius=3.0, names=("z",)).names == ("z",)
    assert join_images([whole, whole], radius=4.0).radius == 4.0


def test_claims_are_cut_and_joined():
    y = torch.rand(3, 1, 8, 8)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=cl.TotalVariation(), weight=0.1, box=(0, 1)
    )
    claim = cl.solve(problem, stop=cl.StopWhen(max_iterations=20)).proof.claim
    part = select_images(claim, slice(1, 3))
    for field in fields(claim):
        whole, cut = getattr(claim, field.name), getattr(part, field.name)
        if isinstance(whole, torch.Tensor):
            assert torch.equal(cut, whole[1:3])
    assert torch.equal(join_images([part, part]).x, part.x.repeat(2, 1, 1, 1))


def test_precision_is_full_until_the_last_thread_leaves():
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    first, second = full_precision(), full_precision()
    try:
        matmul.fp32_precision = conv.fp32_precision = "tf32"
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)  # as a thread does that is done earlier
        assert (matmul.fp32_precision, conv.fp32_precision) == ("ieee", "ieee")
        second.__exit__(None, None, None)
        assert (matmul.fp32_precision, conv.fp32_precision) == ("tf32", "tf32")
    finally:
        matmul.fp32_precision, conv.fp32_precision = before


def test_views_of_blocks_are_those_of_a_mapping():
    parts = {"x": torch.rand(2, 3), "z1": torch.rand(2, 4)}
    blocks = Blocks(parts)
    assert list(blocks.keys()) == list(blocks) == list(parts)
    assert [(name, id(part)) for name, part in blocks.items()] == [
        (name, id(part)) for name, part in Mapping.items(blocks)
    ]
    assert [id(part) for part in blocks.values()] == [id(part) for part in parts.values()]


@pytest.mark.parametrize("shape", [(2, 70_000), (2, 3, 40, 700), (2, 3, 700, 40), (1, 1, 1, 9_000)])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_of_single_precision_have_nearly_the_accuracy_of_double(shape, turned):
    """One rounding of each row at most, which the sum over rows evens out."""
    values = torch.rand(shape, dtype=torch.float32) - 0.2
    values = values.mT if turned and len(shape) > 2 else values
    exact = values.double().flatten(1)
    rtol = torch.finfo(torch.float32).eps
    torch.testing.assert_close(sum_per_image(values), exact.sum(1), rtol=rtol, atol=0)
    squares = Blocks({"x": values}).squares()["x"]
    torch.testing.assert_close(squares, exact.square().sum(1), rtol=2 * rtol, atol=0)
