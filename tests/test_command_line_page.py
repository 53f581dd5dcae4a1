"""docs/command-line.md: its commands and its Python, as printed, on tiny files."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app
from convexlift.images import gaussian_noise, load_example, save_image
from convexlift.phantoms import shepp_logan

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"
SMALLER = {"--size 128": "--size 16", "--extent 440": "--extent 160"}


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_default_dtype(torch.float32)
    generator = torch.Generator().manual_seed(5)
    x = load_example("camera")[..., 80:104, 100:124]
    y = gaussian_noise(x, 0.1, generator)
    save_image(Path("noisy.png"), y)
    for i in range(2):
        save_image(Path(f"photos/{i}.png"), y)
        save_image(Path(f"originals/{i}.png"), x)
    Path("photos/broken.png").write_bytes(b"no picture")
    pixels = np.dstack([(255 * x[0, 0].numpy()).astype(np.uint8)] * 3)
    pixels[5:7] = (255, 0, 255)
    Image.fromarray(pixels).save("scratched.png")
    stack = 300 + 600 * np.stack([y[0, 0].numpy()] * 2)
    stack[:, ::5, ::3] = np.nan
    tifffile.imwrite("cells.tif", stack.astype(np.float32))
    scanner = cl.ParallelBeam(16, 20, 24, 160.0)
    reading = cl.expected_intensity(scanner(0.01 * shepp_logan(16).float()), 2e4)
    scan = cl.scans.Sinogram(
        reading[:, 0], cl.scans.geometry_of(scanner), "counts", flat=torch.full((1, 2, 24), 2e4)
    )
    cl.scans.write_sinogram(scan, "scan.h5")


def test_the_page_runs_as_printed(files, capsys):
    text = PAGE.read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL)
             for line in block.splitlines() if line.startswith("convexlift")]  # fmt: skip
    assert len(lines) == 6
    for line in lines:
        for printed, tiny in SMALLER.items():
            line = line.replace(printed, tiny)
        result = CliRunner().invoke(app, shlex.split(line)[1:])
        assert result.exit_code == (1 if " photos " in line else 0), result.output
        assert ("(2 by an earlier run)" in result.output) == ("--resume" in line)
    for name in ("clean.png", "whole.png", "denoised/1.png", "filled.gap.png", "slice.dcm"):
        assert Path(name).exists(), name
    code = re.search(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert code is not None
    exec(compile(code[1], PAGE.name, "exec"), {})
    assert "again/1.png" in capsys.readouterr().out
