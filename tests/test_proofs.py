"""Proof files of solves and certificates, as the independent checker sees them."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import zoo
from checked_proofs import confirm
from parts import NONNEGATIVE, OPERATORS
from reconstruct_runs import noisy, run
from typer.testing import CliRunner

import convexlift as cl
from convexlift.cli import app

CASES = [(f, name) for f in ("L2", "L1") for name in OPERATORS] + [("KL", n) for n in NONNEGATIVE]
single, double = torch.float32, torch.float64


@pytest.mark.sampled(13)
@pytest.mark.parametrize(
    ("box", "dtype"),
    [((0.0, None), single), ((0.0, 1.0), double), ((None, 2.0), single), (None, double)],
)
@pytest.mark.parametrize(("fidelity", "name"), CASES)
def test_solutions_behind_every_operator_are_confirmed(name, fidelity, box, dtype, tmp_path):
    if fidelity == "KL" and (box is None or box[0] is None):
        box = (0.0, None)
    if name not in NONNEGATIVE and box is not None and None in box:
        box = (-1.0, 3.0)  # A* 1 has both signs, and there need not be a bound behind half a box
    operator = OPERATORS[name]((1, 8, 8))
    w = operator(zoo.clean_images(2))
    data = {
        "L2": lambda: cl.SquaredL2(w + 0.1 * torch.randn(w.shape)),
        "L1": lambda: cl.L1(w + 0.1 * torch.randn(w.shape), 0.3),
        "KL": lambda: cl.KullbackLeibler(torch.poisson(20 * w.clamp_min(0)), 1.0),
    }[fidelity]()
    problem = cl.VariationalProblem(
        fidelity=data,
        operator=(20.0 if fidelity == "KL" else 1.0) * operator,
        regularizer=zoo.network("plain", cl.LeakyReLU(0.2)),
        weight=0.1,
        box=box,
    ).to(dtype=dtype)
    solution = cl.solve(problem, stop=cl.StopWhen(max_iterations=60))
    assert cl.Guarantee.NONE not in solution.guarantee
    within = 1e-9 if dtype is double else 1e-6
    confirm(problem, solution.proof.claim, tmp_path / "x.proof", within)


@pytest.mark.parametrize("box", [(0.0, None), (0.0, 1.0)])
def test_counts_without_background_are_confirmed(box, tmp_path):
    """The slope of y log(y / w) is infinite at w = 0, where pixels are unseen or black."""
    mask = (torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(1)) < 0.7).double()
    y = 20 * mask * zoo.clean_images(1).clamp_min(0)
    y[..., :2, :] = 0
    problem = cl.VariationalProblem(
        fidelity=cl.KullbackLeibler(y), operator=20.0 * cl.Mask(mask),
        regularizer=cl.TotalVariation().double(), weight=1.0, box=box,
    )  # fmt: skip
    solution = cl.solve(problem)
    confirm(problem, solution.proof.claim, tmp_path / "x.proof", 1e-9)


def test_a_proof_needs_a_bound_and_parts_that_can_be_described(tmp_path):
    problem = zoo.problem("plain", cl.ReLU(), "L2", "box")
    outside = cl.certify(problem, torch.full((1, 1, 8, 8), 2.0))
    with pytest.raises(ValueError, match="image 0 has no lower bound"):
        cl.Proof(problem, outside).save(tmp_path / "x.proof")
    with pytest.raises(ValueError, match="is a folder; name a file"):
        cl.solve(problem).proof.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_reconstruct_writes_proofs_that_verify_confirms(tmp_path):
    torch.set_default_dtype(torch.float32)
    stack = np.stack([noisy("camera", 24, seed=i) for i in range(3)])
    np.save(tmp_path / "a.npy", stack.astype(np.float32))
    command = ("denoise", tmp_path / "a.npy", "-o", tmp_path / "out" / "a.npy", "--proof")
    result = run(*command)
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "out" / "a.json").read_text())
    assert record["proof"] == str(tmp_path / "out" / "a.proof")
    checked = CliRunner().invoke(
        app, ["verify", record["proof"], "--json", str(tmp_path / "checked.json")]
    )
    assert checked.exit_code == 0, checked.output
    (file,) = json.loads((tmp_path / "checked.json").read_text())["files"]
    for plane, image in zip(record["planes"], file["images"], strict=True):
        assert image["lower_bound"] == pytest.approx(plane["lower_bound"], rel=1e-9)
    # A result without its proof is not finished.
    (tmp_path / "out" / "a.proof").unlink()
    again = run(
        "denoise", tmp_path / "a.npy", "-o", tmp_path / "out" / "a.npy", "--proof", "--resume"
    )
    assert again.exit_code == 0, again.output
    assert (tmp_path / "out" / "a.proof").is_file()


def test_verify_rejects_by_name_and_goes_on(tmp_path):
    problem = zoo.problem("plain", cl.ReLU(), "L2", "box")
    good = cl.solve(problem).proof.save(tmp_path / "good.proof")
    bad = tmp_path / "bad.proof"
    content = bytearray(good.read_bytes())
    content[-5] ^= 1
    bad.write_bytes(content)
    result = CliRunner().invoke(app, ["verify", str(bad), str(good)])
    assert result.exit_code == 1
    assert f"rejected: {bad}" in result.output
    said = next(line for line in result.output.splitlines() if line.startswith(str(good)))
    assert said.startswith(f"{good}: confirmed: solved to within 0.")
    assert said.endswith("It does not say that the picture is true.")
    missing = tmp_path / "no.proof"
    result = CliRunner().invoke(app, ["verify", str(good), str(missing)])
    assert result.exit_code == 2  # before any file is checked
    assert result.output == f"convexlift: There is no file {missing}. Check the name.\n"
