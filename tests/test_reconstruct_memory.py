"""The memory that a reconstruction is expected to need decides about tiles and batches."""

from __future__ import annotations

import torch
from test_tiles import measurement

import convexlift as cl
from convexlift.reconstruction.solution import PiecewiseSolver


def test_packed_dual_variables_need_fewer_tiles(monkeypatch):
    """Of single large images behind a diagonal operator, by the default method."""
    network, one, other = cl.load("photo-open"), measurement(2048, 2048), cl.Blur(torch.ones(1, 1))
    solver = PiecewiseSolver(network, torch.device("cpu"))
    monkeypatch.setattr(PiecewiseSolver, "_free", lambda self: 12 * 2**30)
    assert solver.tiles_for(one) is None
    assert solver.fitting(one) == 1
    assert solver.fitting(measurement(512, 512)) > 1
    assert solver.tiles_for(measurement(4096, 4096)) is not None
    needed = solver._needed(one, alone=True)
    assert needed < 0.6 * solver._needed(one)
    assert solver._needed(measurement(2048, 2048, other), alone=True) == solver._needed(one)
    nmapg = PiecewiseSolver(network, torch.device("cpu"), method="nmapg")
    assert nmapg._needed(one, alone=True) == solver._needed(one)
    assert PiecewiseSolver(network, torch.device("cpu"), batch=4).fitting(one) == 1, "in tiles"
    assert solver.tiles_for(one, unpacked=True) is not None, "for a gap map"
    deep = cl.networks.adaptive(channels=24, kernel=5, widths=(4,), blocks=1, depth=2)
    levels = cl.networks.ridge(channels=24, kernel=5, levels=[0.05, 0.2])
    for other in (deep, levels):  # by L-BFGS, and perhaps with steps for each channel
        solver = PiecewiseSolver(other, torch.device("cpu"))
        assert solver._needed(one, alone=True) == solver._needed(one)
