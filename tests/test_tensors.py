"""Records of tensors: images of a batch selected and joined."""

from __future__ import annotations

import pytest
import torch

from convexlift.precision import full_precision
from convexlift.tensors import Blocks, sum_per_image


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
