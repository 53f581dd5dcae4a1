"""The same three problems solved here, by deepinv, CIL, ODL and CVXPY: objective, seconds, claims.

    denoising   64 x 64, noise 0.1, total variation, and the learned regularizer photo-any-size
    deblurring  64 x 64, a circular Gaussian blur of 1.5 pixels, noise 0.02, the same two
    CT          64 x 64, deepinv's Tomography with 40 angles, noise 0.5, total variation

Everybody gets the same objective, D(A x, y) + weight R(x) without a box, evaluated by one function
at the image returned. ``excess`` is over the minimum, which is known from a solve of ours to a gap
of 1e-5 in double precision (whose lower bound is used). Run it in the environment of
``make test-ecosystem``, to which cvxpy and clarabel are added:

    .venv-ecosystem/bin/python benchmarks/compare_libraries.py --threads 1

CIL is installed with conda, not with pip: its rows (``cil_methods.py``) are there if it can be
imported, and a line after the table says so if not.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cvxpy as cp
import deepinv
import numpy as np
import odl
import scipy.sparse as sp
import torch

import convexlift as cl
from convexlift.images import load_example
from convexlift.phantoms import shepp_logan

SIZE = 64
STOPPED = "nothing"
"""Of methods that end when x hardly changes, or after their iterations."""


@dataclass
class Case:
    """A problem, as deepinv states it."""

    name: str
    physics: deepinv.physics.LinearPhysics
    y: torch.Tensor
    regularizer: cl.InputConvexNetwork
    weight: float
    step: float

    @property
    def total_variation(self) -> bool:
        """Whether everybody knows this regularizer."""
        return isinstance(self.regularizer, cl.TotalVariation)

    def problem(self, dtype: torch.dtype = torch.float32) -> cl.VariationalProblem:
        """The problem here."""
        y = self.y.to(dtype)
        return cl.deepinv.as_problem(y, self.physics, self.regularizer, self.weight)


def cases() -> Iterator[Case]:
    """The problems, each with its data."""
    picture = load_example("camera")[..., 64 : 64 + SIZE, 64 : 64 + SIZE]
    P, seed = deepinv.physics, torch.Generator().manual_seed
    kernel = P.functional.gaussian_blur(sigma=(1.5, 1.5))
    denoising = P.Denoising(P.GaussianNoise(0.1, rng=seed(0)))
    blur = P.Blur(kernel, padding="circular", noise_model=P.GaussianNoise(0.02, rng=seed(0)))
    scan = P.Tomography(40, SIZE, normalize=False, noise_model=P.GaussianNoise(0.5, rng=seed(0)))
    tv, learned = cl.TotalVariation(), cl.load("photo-any-size")
    network = learned.card.weights["gaussian-denoising"]
    for name, physics, x, weights in (
        ("denoising", denoising, picture, (0.08, network)),
        ("deblurring", blur, picture, (0.004, 0.05 * network)),
        ("CT", scan, shepp_logan(SIZE), (1.0,)),
    ):
        y = physics(x)
        norm = cl.deepinv.as_operator(physics, y).norm(tuple(x.shape[1:]))
        for regularizer, weight in zip((tv, learned), weights, strict=False):
            kind = "TV" if regularizer is tv else "photo-any-size"
            yield Case(f"{name}, {kind}", physics, y, regularizer, weight, 0.99 / norm**2)


Method = Callable[[Case], tuple[torch.Tensor, str]]
CIL = importlib.util.find_spec("cil") is not None


def ours(gap: float) -> Method:
    """``cl.solve``."""

    def run(case: Case) -> tuple[torch.Tensor, str]:
        solution = cl.solve(case.problem(), stop=cl.StopWhen(gap=gap))
        scope = solution.guarantee[0].name.lower().replace("_", " ")
        return solution.x, f"at most {100 * float(solution.gap):.2g} % above it, proven ({scope})"

    return run


def theirs(algorithm: str, iterations: int, prior: str) -> Method:
    """deepinv's algorithm, with our prior, its TV prior, or its generic proximal map."""

    def run(case: Case) -> tuple[torch.Tensor, str]:
        if prior == "our prior":
            made = cl.deepinv.RegularizerPrior(case.regularizer)
        elif prior == "its TVPrior":
            made = deepinv.optim.prior.TVPrior(n_it_max=100)
        else:
            made = deepinv.optim.Prior(g=lambda x, *_: case.regularizer(x))
        solver = getattr(deepinv.optim, algorithm)(
            data_fidelity=deepinv.optim.L2(), prior=made, lambda_reg=case.weight,
            stepsize=case.step, max_iter=iterations, early_stop=True, thres_conv=1e-5,
        )  # fmt: skip
        # Its own start, A* y, is hundreds of times too large in CT.
        start = torch.zeros_like(case.physics.A_adjoint(case.y))
        return solver(case.y, case.physics, init=(start, start.clone())), STOPPED

    return run


def by_odl(iterations: int) -> Method:
    """ODL's PDHG on total variation; denoising only."""

    def run(case: Case) -> tuple[torch.Tensor, str]:
        space = odl.uniform_discr([0, 0], [SIZE, SIZE], [SIZE, SIZE], dtype="float32")
        gradient = odl.Gradient(space, method="forward", pad_mode="symmetric")
        y = space.element(case.y[0, 0].numpy())
        data = 0.5 * odl.functionals.L2NormSquared(space).translated(y)
        variation = case.weight * odl.functionals.GroupL1Norm(gradient.range, 2)
        x = space.zero()
        step = 0.99 / 8**0.5
        odl.solvers.pdhg(x, data, variation, gradient, iterations, tau=step, sigma=step)
        return torch.from_numpy(x.asarray())[None, None], STOPPED

    return run


def by_cvxpy(case: Case) -> tuple[torch.Tensor, str]:
    """CVXPY with Clarabel, from the matrices of the problem."""
    n = SIZE**2
    steps = sp.diags([-np.ones(SIZE), np.ones(SIZE - 1)], [0, 1]).tolil()
    steps[-1] = 0
    down, right = sp.kron(steps, sp.eye(SIZE)).tocsr(), sp.kron(sp.eye(SIZE), steps).tocsr()
    images = torch.eye(n).reshape(n, 1, SIZE, SIZE)
    with torch.no_grad():
        columns = case.physics.A(images).flatten(1).double().numpy()
    matrix = sp.csr_matrix(np.where(np.abs(columns) > 1e-12, columns, 0).T)
    x = cp.Variable(n)
    variation = cp.sum(cp.norm(cp.vstack([down @ x, right @ x]), axis=0))
    data = 0.5 * cp.sum_squares(matrix @ x - case.y.flatten().double().numpy())
    problem = cp.Problem(cp.Minimize(data + case.weight * variation))
    problem.solve(solver=cp.CLARABEL)
    found = torch.from_numpy(x.value).float().reshape(1, 1, SIZE, SIZE)
    return found, f"{problem.status}, to the tolerance of the solver (1e-8)"


def methods(case: Case) -> Iterator[tuple[str, Method]]:
    """Who can solve the problem."""
    yield "convexlift, gap 1e-3", ours(1e-3)
    yield "convexlift, gap 1e-4", ours(1e-4)
    yield "deepinv PGD, our prior", theirs("PGD", 200, "our prior")
    yield "deepinv FISTA, our prior", theirs("FISTA", 200, "our prior")
    if case.total_variation:
        yield "deepinv PGD, its TVPrior", theirs("PGD", 200, "its TVPrior")
        yield "deepinv FISTA, its TVPrior", theirs("FISTA", 200, "its TVPrior")
    else:
        yield "deepinv FISTA, its generic prox, 20 iterations", theirs("FISTA", 20, "generic")
    if CIL:
        from cil_methods import cil_methods

        yield from cil_methods(case)
    if case.total_variation and "denoising" in case.name:
        yield "ODL PDHG, 300 iterations", by_odl(300)
    if case.total_variation and "CT" not in case.name:
        yield "CVXPY (Clarabel)", by_cvxpy


def main() -> None:
    """Print a table for Markdown."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(options.parse_args().threads)
    warnings.simplefilter("ignore")  # deepinv's are many
    print("| problem | method | excess over the minimum | seconds | says about the minimum |")
    print("|---|---|---|---|---|")
    for case in cases():
        exact = cl.solve(case.problem(torch.float64), stop=cl.StopWhen(gap=1e-5))
        least = float(exact.lower_bound)
        judge = case.problem()
        for name, method in methods(case):
            begin = time.perf_counter()
            x, claim = method(case)
            seconds = time.perf_counter() - begin
            excess = float(judge.objective(x.detach())) / least - 1
            print(f"| {case.name} | {name} | {excess:.1e} | {seconds:.2f} | {claim} |", flush=True)
    if not CIL:
        print("\nCIL cannot be imported here; install it with conda for its rows.")


if __name__ == "__main__":
    main()
