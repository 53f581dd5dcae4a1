"""What people use, on a GPU: files, jobs of the web page, scores. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import tifffile
import torch
from reconstruct_runs import bits, noisy, one_record, run

from convexlift.images import load_example, ssim

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.single_precision,
]


@pytest.fixture
def stack(tmp_path):
    """Six noisy pages."""
    pages = np.stack([noisy(size=64, sigma=0.1, seed=i) for i in range(6)])
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, bits(pages, np.uint16), imagej=True)
    return path


@pytest.fixture
def little_memory():
    """This process may take a hundredth of the device, and no more."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(0.01)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


@pytest.mark.parametrize("options", [[], ["--weight", "auto"], ["--method", "lbfgs"]])
def test_files_come_out_as_on_the_cpu(options, stack, tmp_path):
    found = {}
    for device in ("cpu", "cuda"):
        output = tmp_path / device
        result = run("denoise", stack, "-o", output, "--sigma", 0.1, "--device", device, *options,
                     "--tolerance", 1e-4, "--batch", 6, quick=False)  # fmt: skip
        assert result.exit_code == 0, result.output
        assert one_record(output, "stack")["settings"]["device"] == device
        found[device] = tifffile.imread(output / "stack.tif").astype(float) / 65535
    assert found["cuda"].shape == (6, 64, 64)
    np.testing.assert_allclose(found["cuda"], found["cpu"], atol=5e-3)


def test_a_batch_that_does_not_fit_is_halved(little_memory, tmp_path):
    """64 pages of 512 x 512 with the shipped network want several times the memory there is."""
    page = bits(np.tile(noisy(size=64, sigma=0.1), (8, 8)), np.uint16)
    tifffile.imwrite(tmp_path / "large.tif", np.stack([page] * 64), imagej=True)
    result = run("denoise", tmp_path / "large.tif", "-o", tmp_path / "out", "--sigma", 0.1,
                 "--device", "cuda", "--batch", 64, quick=False)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert tifffile.imread(tmp_path / "out/large.tif").shape == (64, 512, 512)


def test_similarity_does_not_depend_on_the_device_or_the_batch():
    """In TF32, the default of convolutions, it is wrong in the second digit."""
    truth = load_example("camera").repeat(3, 1, 1, 1)
    x = truth + 0.02 * torch.randn(truth.shape, generator=torch.Generator().manual_seed(0))
    expected = ssim(x, truth)
    torch.testing.assert_close(ssim(x.cuda(), truth.cuda()).cpu(), expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(ssim(x[:1], truth[:1]), expected[:1], rtol=0, atol=1e-9)
