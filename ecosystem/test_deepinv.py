"""``cl.deepinv`` with deepinv itself, in an environment of its own: ``make test-ecosystem``."""

from __future__ import annotations

import copy

import deepinv
import pytest
import torch
from deepinv.optim import data_fidelity as fidelities
from deepinv.physics import GaussianNoise, PoissonNoise
from torch.utils.data import DataLoader, TensorDataset

import convexlift as cl

pytestmark = pytest.mark.filterwarnings("default")  # theirs are many

SIZE = 16
TV = cl.TotalVariation()
QUIET = {"device": "cpu", "verbose": False, "show_progress_bar": False}


def coil_maps(coils: int = 3) -> torch.Tensor:
    """Smooth complex sensitivities, (1, coils, H, W)."""
    across = torch.linspace(-1, 1, SIZE)
    rows, columns = torch.meshgrid(across, across, indexing="ij")
    angles = torch.arange(coils) * 2.1
    parts = [torch.exp(-((rows - a.cos()) ** 2) - (columns - a.sin()) ** 2) for a in angles]
    return torch.stack([p * torch.exp(1j * (k + rows)) for k, p in enumerate(parts)])[None]


def sampling() -> torch.Tensor:
    """Every second line and the middle ones, (1, 1, H, W)."""
    mask = torch.zeros(1, 1, SIZE, SIZE)
    mask[..., ::2], mask[..., 6:10] = 1, 1
    return mask


def physics(name: str, noise: float = 0.05) -> deepinv.physics.LinearPhysics:
    shape = (1, SIZE, SIZE)
    kernel = deepinv.physics.functional.gaussian_blur(sigma=(1.0, 1.5))
    generator = torch.Generator().manual_seed(1)  # which deepcopy cannot copy
    kinds = {
        "denoising": lambda: deepinv.physics.Denoising(),
        "inpainting": lambda: deepinv.physics.Inpainting(shape, mask=0.6),
        "blur": lambda: deepinv.physics.Blur(kernel, padding="circular"),
        "blur reflect": lambda: deepinv.physics.Blur(kernel, padding="reflect"),
        "blur valid": lambda: deepinv.physics.Blur(kernel, padding="valid"),
        "blur fft": lambda: deepinv.physics.BlurFFT(shape, kernel),
        "downsampling": lambda: deepinv.physics.Downsampling(shape, filter="gaussian", factor=2),
        "tomography": lambda: deepinv.physics.Tomography(20, SIZE, normalize=False),
        "fan": lambda: deepinv.physics.Tomography(20, SIZE, normalize=False, fan_beam=True),
        "mri": lambda: deepinv.physics.MRI(sampling()),
        "coils": lambda: deepinv.physics.MultiCoilMRI(sampling(), coil_maps=coil_maps()),
        "stacked": lambda: deepinv.physics.stack(kinds["inpainting"](), kinds["downsampling"]()),
    }
    made = kinds[name]()
    made.set_noise_model(GaussianNoise(noise, rng=generator))
    return made


NAMES = ["denoising", "inpainting", "blur", "blur reflect", "blur valid", "blur fft",
         "downsampling", "tomography", "fan", "mri", "coils", "stacked"]  # fmt: skip
OWN = {"denoising": cl.Identity, "inpainting": cl.operators.imaging.Diagonal, "blur": cl.Blur,
       "blur reflect": cl.Blur, "blur fft": cl.Blur}  # fmt: skip


def images(name: str, count: int = 2) -> torch.Tensor:
    x = torch.zeros(count, 2 if name in ("mri", "coils") else 1, SIZE, SIZE)
    for i in range(count):
        x[i, :, 4 : 9 + i, 3:12] = 1 - 0.3 * i
    return x


def regularizer(name: str) -> cl.TotalVariation:
    return cl.TotalVariation(in_channels=2) if name in ("mri", "coils") else TV


@pytest.mark.parametrize("name", NAMES)
def test_linear_physics_are_operators_with_exact_adjoints(name):
    A, x = physics(name, noise=0.0), images(name)
    y = A.A(x)
    operator = cl.deepinv.as_operator(A, y)
    assert isinstance(operator, OWN.get(name, cl.deepinv.PhysicsOperator))
    torch.testing.assert_close(operator(x), cl.deepinv.as_data(y), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        operator.adjoint(cl.deepinv.as_data(y)), A.A_adjoint(y), rtol=1e-4, atol=1e-4
    )
    cl.check_operator(operator, tuple(x.shape[1:]))  # in double precision


@pytest.mark.parametrize("name", NAMES)
def test_reconstructions_are_certified_whatever_the_physics(name):
    A, x = physics(name), images(name)
    y, before = A(x), copy.deepcopy(A.state_dict())
    model = cl.deepinv.CertifiedReconstructor(regularizer(name), 0.1)
    assert isinstance(model, deepinv.models.Reconstructor)
    found = model(y, A)
    assert found.shape == x.shape
    assert (model.solution.gap <= 1e-3).all()
    problem = cl.deepinv.as_problem(y, A, regularizer(name), 0.1)
    assert (model.solution.lower_bound <= problem.objective(x)).all()
    torch.testing.assert_close(
        problem.objective(found), model.solution.objective, rtol=1e-5, atol=0
    )
    assert all(torch.equal(before[key], value) for key, value in A.state_dict().items())


@pytest.mark.parametrize("name", ["blur valid", "coils"])
def test_a_batch_gives_what_single_images_give(name):
    A, x = physics(name), images(name)
    y = A(x)
    model = cl.deepinv.CertifiedReconstructor(regularizer(name), 0.1)
    together = model(y, A)
    for i in range(len(x)):
        torch.testing.assert_close(together[i], model(y[i : i + 1], A)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_operators_have_the_precision_of_the_data(name):
    A, x = physics(name), images(name)
    y = A.A(x)
    double = deepinv.utils.TensorList([p.double() for p in y]) if name == "stacked" else y.double()
    operator = cl.deepinv.as_operator(A, double)
    back = operator.adjoint(cl.deepinv.as_data(double))
    assert operator(x.double()).dtype == back.dtype == torch.float64
    left, right = (operator(x.double()) ** 2).sum(), (back * x.double()).sum()
    torch.testing.assert_close(left, right, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        operator(x.double()).float(), cl.deepinv.as_data(y), rtol=1e-4, atol=1e-4
    )


def test_precision_follows_the_data_and_shared_operators_have_proof_files(tmp_path):
    A = physics("inpainting")
    y = A(images("inpainting")).double()
    model = cl.deepinv.CertifiedReconstructor(TV, 0.1, stop=cl.StopWhen(gap=1e-5))
    assert model(y, A).dtype == torch.float64
    assert TV.output.dtype == torch.float32  # a copy was converted
    proof = model.solution.proof.save(tmp_path / "x.proof")
    assert cl.verify(proof)
    model = cl.deepinv.CertifiedReconstructor(TV, 0.1)
    model(physics("tomography")(images("tomography")), physics("tomography"))
    with pytest.raises(ValueError, match="the operator PhysicsOperator is not the library's own"):
        model.solution.proof.save(tmp_path / "y.proof")


def test_their_fidelities_become_ours_with_the_same_objective():
    A, x = deepinv.physics.Denoising(), 0.5 + images("denoising")
    gain, background = 0.2, 0.3
    y = PoissonNoise(gain, rng=torch.Generator().manual_seed(0))(x).double()
    u = x.double() + 0.1
    penalty = 0.2 * TV(u.float())
    counts, mean = y / gain, u / gain + background
    logs = torch.where(counts > 0, counts * (counts / mean).log(), 0.0)
    expected = {
        fidelities.L2(sigma=0.5): 2 * (u - y) ** 2,
        fidelities.L2(): (u - y) ** 2 / 2,
        fidelities.L1(): (u - y).abs(),
        fidelities.PoissonLikelihood(gain, background): mean - counts + logs,
    }
    for theirs, terms in expected.items():
        problem = cl.deepinv.as_problem(y, A, TV, 0.2, data_fidelity=theirs, box=(0, None))
        value = terms.flatten(1).sum(1) + penalty
        torch.testing.assert_close(problem.objective(u), value, rtol=1e-6, atol=0)


def test_a_regularizer_that_reads_the_data_takes_the_noise_of_the_physics():
    A = deepinv.physics.Denoising(GaussianNoise(0.1, rng=torch.Generator().manual_seed(0)))
    x = images("denoising")
    model = cl.deepinv.CertifiedReconstructor(cl.load("photo-open"))
    assert (model(A(x), A) - x).norm() < 0.5 * (A(x) - x).norm()
    assert (model.solution.gap <= 1e-3).all()


def test_bad_inputs_are_named():
    A = physics("denoising")
    y = A(images("denoising"))
    model = cl.deepinv.CertifiedReconstructor(TV, data_fidelity=fidelities.IndicatorL2(1.0))
    with pytest.raises(TypeError, match=r"must be L2, L1 or PoissonLikelihood.* got IndicatorL2"):
        model(y, A)
    bent = deepinv.physics.Physics(A=lambda x: x**2)
    with pytest.raises(TypeError, match="LinearPhysics, got Physics"):
        cl.deepinv.as_operator(bent, y)
    wrong = deepinv.physics.LinearPhysics(A=lambda x: 2 * x, A_adjoint=lambda y: y)
    with pytest.raises(ValueError, match="its adjoint is not the adjoint of its forward"):
        cl.deepinv.CertifiedReconstructor(TV)(y, wrong)
    affine = deepinv.physics.LinearPhysics(A=lambda x: x + 1, A_adjoint=lambda y: y)
    with pytest.raises(ValueError, match="an affine map"):
        cl.deepinv.CertifiedReconstructor(TV)(y, affine)
    with pytest.raises(ValueError, match="reads the data"):
        cl.deepinv.RegularizerPrior(cl.load("photo-open"))
    with pytest.raises(ValueError, match="one number for the whole batch, got 2"):
        cl.deepinv.RegularizerPrior(TV).prox(y, gamma=torch.tensor([1.0, 2.0]))


# Gradients ----------------------------------------------------------------------------------------


def ridge(in_channels: int = 1) -> cl.InputConvexNetwork:
    torch.manual_seed(0)
    return cl.networks.ridge(channels=4, kernel=3, smoothing=0.05, in_channels=in_channels)


@pytest.mark.parametrize("name", ["denoising", "blur", "tomography", "coils"])
def test_gradients_through_the_reconstructor_are_finite_differences(name):
    A, x = physics(name), images(name).double()
    network = ridge(in_channels=x.shape[1]).double()
    weight = torch.nn.Parameter(torch.tensor(0.3).double())
    model = cl.deepinv.CertifiedReconstructor(
        network, weight, stop=cl.StopWhen(gap=1e-9), differentiable=True
    )
    assert any(parameter is weight for parameter in model.parameters())
    y = A(x.float()).double().requires_grad_()
    loss = ((model(y, A) - x) ** 2).sum()
    loss.backward()

    def value(shift: float, along: torch.Tensor | None = None) -> float:
        with torch.no_grad():
            moved, number = (y, shift) if along is None else (y + shift * along, 0.0)
            model.weight += number
            found = ((model(moved, A) - x) ** 2).sum()
            model.weight -= number
            return float(found)

    slope = (value(1e-5) - value(-1e-5)) / 2e-5  # short: curvatures have jumps
    assert float(weight.grad) == pytest.approx(slope, rel=2e-2)
    along = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).to(y)
    slope = (value(1e-5, along) - value(-1e-5, along)) / 2e-5
    assert float((y.grad * along).sum()) == pytest.approx(slope, rel=2e-2)
    assert float(network.output.grad.norm()) > 0


def test_their_trainer_trains_a_regularizer_and_its_weight(tmp_path):
    A, x = physics("denoising", noise=0.15), images("denoising", 4)
    loader = DataLoader(TensorDataset(x, A(x)), batch_size=2)
    weight = torch.nn.Parameter(torch.tensor(0.02))
    model = cl.deepinv.CertifiedReconstructor(
        ridge(), weight, stop=cl.StopWhen(gap=1e-4), differentiable=True
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    model.keep_convex(optimizer)
    trainer = deepinv.Trainer(
        model, A, optimizer=optimizer, train_dataloader=loader, epochs=8, save_path=tmp_path,
        losses=deepinv.loss.SupLoss(), metrics=deepinv.loss.metric.PSNR(), **QUIET,
    )  # fmt: skip
    before = trainer.test(loader)["PSNR"]
    first = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer.train()
    assert trainer.test(loader)["PSNR"] > before + 1
    assert all(not torch.equal(first[name], value) for name, value in model.named_parameters())
    model.regularizer.check_convexity()
    assert (model.solution.gap <= 1e-4).all()  # of the last evaluation


def test_gradients_are_never_lost_without_a_word():
    A, x = physics("denoising"), images("denoising")
    y = A(x).requires_grad_()
    plain = cl.deepinv.CertifiedReconstructor(ridge(), 0.1)
    with pytest.raises(ValueError, match="the fidelity of the problem requires gradients"):
        plain(y, A)
    with torch.no_grad():
        assert not plain(y, A).requires_grad
    assert not plain(y.detach(), A).requires_grad
    learning = cl.deepinv.CertifiedReconstructor(ridge(), 0.1, differentiable=True)
    with pytest.raises(ValueError, match="for gradients of its own parameters"):
        learning(y.double(), A)
    assert learning(y, A).requires_grad
    with torch.no_grad():
        assert not learning(y.double(), A).requires_grad
    seen = physics("inpainting")
    seen.mask.requires_grad_()
    with pytest.raises(ValueError, match="the operator of the problem requires gradients"):
        plain(A(x), seen)
    learning(A(x), seen).sum().backward()
    assert seen.mask.grad is not None


def test_stacks_of_one_physics_and_complex_data_have_exact_adjoints():
    x = images("denoising")
    fourier = deepinv.physics.LinearPhysics(
        A=lambda x: torch.fft.fft2(x, norm="ortho"),
        A_adjoint=lambda y: torch.fft.ifft2(y, norm="ortho").real,
    )
    for others in ([], [physics("inpainting")]):
        A = deepinv.physics.stack(fourier, *others)
        y = A.A(x)
        operator = cl.deepinv.as_operator(A, y)
        cl.check_operator(operator, tuple(x.shape[1:]))
        torch.testing.assert_close(operator(x), cl.deepinv.as_data(y))
        torch.testing.assert_close(operator.adjoint(cl.deepinv.as_data(y)), A.A_adjoint(y))


# Priors -------------------------------------------------------------------------------------------


def test_the_prior_is_the_regularizer_with_its_gradient():
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1).double()
    prior = cl.deepinv.RegularizerPrior(network)
    x, d = torch.rand(2, 1, 8, 8).double(), torch.randn(2, 1, 8, 8).double()
    assert isinstance(prior, deepinv.optim.Prior)
    assert prior.explicit_prior
    assert prior(x, 0.1).shape == (2,)  # deepinv gives a parameter of the prior
    slope = (prior(x + 1e-6 * d) - prior(x - 1e-6 * d)) / 2e-6
    torch.testing.assert_close((prior.grad(x, 0.1) * d).flatten(1).sum(1), slope, rtol=1e-6, atol=0)


def test_unfolded_gradient_descent_learns_the_regularizer_and_its_weight():
    network = cl.networks.ridge(channels=4, kernel=3, smoothing=0.1)
    model = deepinv.optim.GD(
        data_fidelity=deepinv.optim.L2(), prior=cl.deepinv.RegularizerPrior(network),
        lambda_reg=0.1, stepsize=0.2, max_iter=3, unfold=True, trainable_params=["lambda_reg"],
    )  # fmt: skip
    A, x = physics("denoising"), images("denoising")
    loss = (model(A(x), A) - x).square().mean()
    loss.backward()
    slopes = [each.grad for each in model.parameters()]
    assert all(each is not None and each.isfinite().all() for each in slopes)
    assert network.layers[0].skip.weight.grad.abs().max() > 0


def test_unfolded_proximal_methods_are_an_error_instead_of_a_model_that_learns_nothing():
    model = deepinv.optim.PGD(
        data_fidelity=deepinv.optim.L2(), prior=cl.deepinv.RegularizerPrior(TV), lambda_reg=0.1,
        stepsize=0.9, max_iter=2, unfold=True, trainable_params=["lambda_reg", "stepsize"],
    )  # fmt: skip
    A = physics("denoising")
    with pytest.raises(ValueError, match="gradients, which the"):
        model(A(images("denoising")), A)


def test_the_proximal_map_of_total_variation_is_that_of_their_denoiser():
    """Their own algorithm, run for long, as the oracle."""
    x = images("denoising").double() + 0.1 * torch.randn(2, 1, SIZE, SIZE).double()
    theirs = deepinv.models.TVDenoiser(n_it_max=20000, crit=1e-12)(x, 0.2)
    prior = cl.deepinv.RegularizerPrior(TV, accuracy=1e-4)
    ours = prior.prox(x, 0.1, gamma=0.2)
    distance = (ours - theirs).flatten(1).norm(dim=1)
    assert (prior.proximal_map.error <= 1e-4 * x.flatten(1).norm(dim=1)).all()
    assert (distance <= prior.proximal_map.error + 1e-5).all()


@pytest.mark.parametrize("name", ["PGD", "FISTA", "ADMM", "DRS", "PDCP"])
def test_their_algorithms_reach_the_certified_optimum(name):
    A = physics("inpainting")
    y = A(images("inpainting"))
    best = cl.solve(cl.deepinv.as_problem(y, A, TV, 0.1), stop=cl.StopWhen(gap=1e-4))
    options = {"stepsize": 0.9, "lambda_reg": 0.1, "max_iter": 100}
    options |= {"stepsize_dual": 0.9} if name == "PDCP" else {}
    prior = cl.deepinv.RegularizerPrior(TV)
    algorithm = getattr(deepinv.optim, name)
    found = algorithm(data_fidelity=fidelities.L2(), prior=prior, **options)(y, A)
    objective = best.proof.problem.objective(found)
    assert (objective >= best.lower_bound).all()
    assert (objective <= 1.01 * best.objective).all()


def test_half_quadratic_splitting_takes_the_prior():
    """It minimises something else, so only its fixed point is known to exist."""
    A = physics("inpainting")
    y = A(images("inpainting"))
    prior = cl.deepinv.RegularizerPrior(TV)
    model = deepinv.optim.HQS(
        data_fidelity=fidelities.L2(), prior=prior, stepsize=1.0, lambda_reg=0.1, max_iter=40
    )
    found = model(y, A)
    again = prior.prox(fidelities.L2().prox(found, y, A, gamma=1.0), gamma=0.1)
    torch.testing.assert_close(again, found, rtol=0, atol=2e-2)


# Their test bench ---------------------------------------------------------------------------------


@pytest.mark.parametrize("curves", [False, True])
def test_the_reconstructor_passes_their_test_bench(curves, tmp_path):
    A, x = physics("inpainting"), images("inpainting", 4)
    loader = DataLoader(TensorDataset(x, A(x)), batch_size=2)
    model = cl.deepinv.CertifiedReconstructor(TV, 0.05, box=(0, 1))
    results = deepinv.test(
        model, loader, A, metrics=deepinv.loss.metric.PSNR(),
        plot_convergence_metrics=curves, save_folder=tmp_path, **QUIET,
    )  # fmt: skip
    assert results["PSNR"] > results["PSNR no learning"] + 5
    if curves:
        found, metrics = model(A(x), A, x_gt=x, compute_metrics=True)
        assert found.shape == x.shape
        assert len(metrics["psnr"]) == len(metrics["cost"]) == len(metrics["gap"]) == 4
        assert metrics["gap"][0][-1] <= 1e-3


def test_the_reconstructor_is_evaluated_by_their_trainer(tmp_path):
    A, x = physics("denoising"), images("denoising", 4)
    loader = DataLoader(TensorDataset(x, A(x)), batch_size=2)
    trainer = deepinv.Trainer(
        cl.deepinv.CertifiedReconstructor(TV, 0.05), A, optimizer=None, train_dataloader=loader,
        eval_dataloader=loader, metrics=deepinv.loss.metric.PSNR(), save_path=tmp_path, **QUIET,
    )  # fmt: skip
    assert trainer.test(loader)["PSNR"] > 25
