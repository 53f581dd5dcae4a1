"""The same problems on a GPU: results as on the CPU. Skipped where there is none."""

from __future__ import annotations

import pytest
import torch
import zoo

import convexlift as cl

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

METHODS = [cl.PDHG(), cl.PDHG(steps=cl.PaperSteps((0.5, 0.05))), cl.NMAPG(), cl.LBFGS()]


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("fidelity", zoo.FIDELITIES)
def test_the_gpu_gives_what_the_cpu_gives(fidelity, method):
    on_cpu = zoo.problem("plain", zoo.MONOTONE["smoothed"], fidelity, "box", batch=3)
    on_gpu = on_cpu.to(device="cuda")
    stop = cl.StopWhen(gap=1e-4, max_iterations=300)
    expected = cl.solve(on_cpu, method=method, stop=stop)
    solution = cl.solve(on_gpu, method=method, stop=stop)
    assert solution.x.device.type == "cuda"
    assert solution.status == expected.status
    torch.testing.assert_close(solution.objective.cpu(), expected.objective, rtol=3e-4, atol=0)
    assert (solution.lower_bound.cpu() <= expected.objective * (1 + 1e-9)).all()


@pytest.mark.parametrize("architecture", [*zoo.ARCHITECTURES, "residual last"])
def test_every_architecture_behind_a_blur(architecture):
    data, _ = zoo.fidelity("L2", batch=2)
    problem = cl.VariationalProblem(
        fidelity=data,
        operator=cl.Blur.gaussian(0.7),
        regularizer=zoo.network(architecture, cl.LeakyReLU(0.2)),
        weight=0.1,
        box=(0, 1),
    ).to(device="cuda")
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    assert set(solution.status) == {cl.Status.CONVERGED}
    exact = cl.certify(problem, solution.x, solution.duals)
    assert (exact.gap <= 1.0001e-4).all()


@pytest.mark.parametrize("isotropic", [True, False])
def test_total_variation(isotropic):
    data, operator = zoo.fidelity("masked L2", batch=2)
    problem = cl.VariationalProblem(
        fidelity=data,
        operator=operator,
        regularizer=cl.TotalVariation(isotropic),
        weight=0.1,
        box=(0, 1),
    )
    stop = cl.StopWhen(gap=1e-6)
    expected, solution = (
        cl.solve(problem, stop=stop),
        cl.solve(problem.to(device="cuda"), stop=stop),
    )
    assert set(solution.status) == {cl.Status.CONVERGED}
    torch.testing.assert_close(solution.objective.cpu(), expected.objective, rtol=3e-6, atol=0)


@pytest.mark.parametrize("padding", ["reflect", "replicate"])
def test_padded_convolutions(padding):
    net = cl.networks.convolutional(channels=3, padding=padding)
    data, operator = zoo.fidelity("L1", batch=2)
    problem = cl.VariationalProblem(
        fidelity=data, operator=operator, regularizer=net, weight=0.5, box=(0, 1)
    ).to(device="cuda")
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    assert set(solution.status) == {cl.Status.CONVERGED}


def test_tf32_is_off_inside():
    matmul, conv = torch.backends.cuda.matmul, torch.backends.cudnn.conv
    before = matmul.fp32_precision, conv.fp32_precision
    problem = zoo.problem("deep", cl.LeakyReLU(0.2), "L2", batch=2)
    problem = problem.to(device="cuda", dtype=torch.float32)
    try:
        matmul.fp32_precision = conv.fp32_precision = "tf32"
        solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    finally:
        matmul.fp32_precision, conv.fp32_precision = before
    exact = cl.certify(problem, solution.x, solution.duals)
    assert (exact.gap <= 2e-5).all()


@pytest.mark.parametrize(
    "beam",
    [
        lambda: cl.ParallelBeam((20, 25), 30, 33),
        lambda: cl.FanBeam(24, 30, 40, 40.0, 20.0, detector="curved"),
    ],
)
def test_ray_transforms(beam):
    on_cpu = beam()
    on_gpu = on_cpu.to(device="cuda")
    x = torch.rand((2, *on_cpu.input_shape))
    y = on_cpu(x)
    torch.testing.assert_close(on_gpu(x.cuda()).cpu(), y)
    torch.testing.assert_close(on_gpu.adjoint(y.cuda()).cpu(), on_cpu.adjoint(y))
    torch.testing.assert_close(cl.fbp(on_gpu, y.cuda()).cpu(), cl.fbp(on_cpu, y))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_adjoints_folded_on_a_gpu():
    V = cl.networks.ridge(channels=4, kernel=5).bind((1, 12, 16)).layers[0].operators[0]
    p = torch.rand(2, 4, 12, 16)
    there = V.to(device="cuda")
    assert torch.allclose(there.adjoint(p.cuda()).cpu(), V.adjoint(p), rtol=1e-13, atol=1e-13)
