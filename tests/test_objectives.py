"""Objectives: the formulas of adversarial and bilevel learning, and what they remember."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import waves

import convexlift as cl
from convexlift.networks.architectures import baseline, ridge
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.training import (
    Adversarial,
    Batch,
    BatchSampler,
    Bilevel,
    ImageSet,
    Implicit,
    ValueFunction,
)
from convexlift.training.initialization import start_from_filters_

SIZE = 8


def network(smoothing: float = 0.05) -> cl.InputConvexNetwork:
    torch.manual_seed(2)
    net = baseline(SIZE, channels=4, pool=4, hidden=6, kernel=3, smoothing=smoothing)
    with torch.no_grad():
        net.output.fill_(9.0)  # steep enough for the penalty to matter
    return net


def batch_of(images: ImageSet, step: int = 0, *, size: int | None = None, fixed=False) -> Batch:
    batch = BatchSampler(images, size or len(images), fixed=fixed).batch(step)
    values = {**vars(batch), "clean": batch.clean.double()}
    return Batch(**values)


# Adversarial regularization


def steepness_by_differences(net: cl.InputConvexNetwork, x: torch.Tensor) -> torch.Tensor:
    """||grad R|| of each image, a pixel at a time."""
    e = 1e-5
    slopes = []
    for pixel in range(x[0].numel()):
        change = torch.zeros_like(x).flatten(1)
        change[:, pixel] = e
        change = change.reshape(x.shape)
        slopes.append((net(x + change) - net(x - change)).detach() / (2 * e))
    return torch.stack(slopes, 1).norm(dim=1)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("given", [True, False])
def test_the_adversarial_loss_is_its_formula(paired, given):
    net, batch = network(), batch_of(waves(3, SIZE))
    task = SaltAndPepper(0.3)
    damaged = task.measure(batch.clean, batch.generators()).picture
    if given:
        noisy = torch.rand(3, SIZE, SIZE)
        objective = Adversarial(
            None, 7.0, paired=paired, damaged=ImageSet.from_tensors(list(noisy))
        )
        damaged = noisy.float().double()[batch.indices][:, None]
    else:
        objective = Adversarial(task, 7.0, paired=paired)
    loss = objective(net, batch)

    partner = damaged if paired else damaged[[2, 0, 1]]
    s = torch.stack([torch.rand((), generator=g) for g in batch.generators(stream=1)])
    s = s.reshape(3, 1, 1, 1)
    steepness = steepness_by_differences(net, s * batch.clean + (1 - s) * partner)
    assert (steepness > 1).any()
    distance = net(damaged).mean() - net(batch.clean).mean()
    expected = -distance + 7.0 * ((steepness - 1).clamp_min(0) ** 2).mean()
    assert float(loss.value) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert float(loss.surrogate.detach()) == float(loss.value)
    assert set(loss.metrics) == set(objective.metric_names)
    assert float(loss.metrics["distance"]) == pytest.approx(float(distance.detach()))
    assert float(loss.metrics["steepness"]) == pytest.approx(float(steepness.mean()), rel=1e-6)


def test_the_adversarial_gradient_is_that_of_the_loss():
    net, batch = network(), batch_of(waves(3, SIZE))
    objective = Adversarial(GaussianDenoising(0.3))
    objective(net, batch).surrogate.backward()
    parameter = net.layers[0].skip.weight
    gradient, e = parameter.grad.clone(), 1e-5
    for place in [(0, 0, 0, 0), (2, 0, 1, 2), (3, 0, 2, 1)]:
        values = []
        for sign in (e, -e):
            with torch.no_grad():
                parameter[place] += sign
            values.append(float(objective(net, batch).value))
            with torch.no_grad():
                parameter[place] -= sign
        assert float(gradient[place]) == pytest.approx((values[0] - values[1]) / (2 * e), rel=1e-4)


class Kernels(TorchDispatchMode):
    """Remembers the largest kernel of all convolutions, those of backward passes included."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.convolution.default, torch.ops.aten.conv2d.default):
            self.largest = max(self.largest, *args[1].shape[-2:])
        return function(*args, **(kwargs or {}))


def test_no_convolution_has_kernels_as_large_as_the_image():
    """What autograd's derivative of the derivative of a convolution is."""
    with Kernels() as seen:
        Adversarial(GaussianDenoising(0.3))(
            network(), batch_of(waves(3, SIZE))
        ).surrogate.backward()
    assert 0 < seen.largest <= 3


def test_adversarial_input_that_makes_no_sense():
    images = waves(3, SIZE)
    with pytest.raises(ValueError, match="needs a task that damages images, or damaged images"):
        Adversarial(None)
    with pytest.raises(ValueError, match="needs a task that damages images, or damaged images"):
        Adversarial(GaussianDenoising(), damaged=images)
    with pytest.raises(ValueError, match=r"Adversarial needs penalty >= 0, got -1\.0"):
        Adversarial(GaussianDenoising(), -1.0)
    with pytest.raises(ValueError, match="has no damaged version: there are 2; give one for each"):
        Adversarial(None, damaged=images.first(2))(network(), batch_of(images))
    other = ImageSet.from_tensors([torch.rand(4, 4)] * 3)
    with pytest.raises(ValueError, match=r"\(1, 4, 4\) do not match clean ones of \(1, 8, 8\)"):
        Adversarial(None, damaged=other)(network(), batch_of(images))


# Bilevel learning


STOP = cl.StopWhen(gap=1e-5, max_iterations=300)


def learner(smoothing: float = 0.05) -> cl.InputConvexNetwork:
    torch.manual_seed(2)
    net = ridge(channels=4, kernel=3, smoothing=smoothing)
    start_from_filters_(net, 0.02)
    return net


def test_the_value_function_refines_a_coarse_solution():
    """From a solution at a gap of 1e-2, it gives the gradient of an accurate one."""
    net, batch = learner(0.0), batch_of(waves(3, SIZE))
    truth = batch.clean
    problem = GaussianDenoising(0.15).measure(truth, batch.generators()).problem(net, 1.0)
    gradients = []
    for gap in (1e-2, 1e-6):
        solution = cl.solve(problem, stop=cl.StopWhen(gap=gap, max_iterations=2000))
        net.zero_grad()
        strategy = ValueFunction(1e-3, gap=1e-7, max_iterations=3000)
        strategy.surrogate(problem, solution, truth).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    coarse, fine = gradients
    assert torch.cosine_similarity(coarse, fine, dim=0) > 0.99


def test_the_bilevel_loss_is_the_error_of_the_reconstruction():
    net, batch = learner(), batch_of(waves(3, SIZE))
    task = Inpainting(0.3, 0.05)
    loss = Bilevel([(task, 0.5)], stop=STOP)(net, batch)
    problem = task.measure(batch.clean, batch.generators()).problem(net, 0.5)
    error = (cl.solve(problem, stop=STOP).x - batch.clean).square().flatten(1).mean(1)
    assert float(loss.value) == pytest.approx(float(error.mean()) / 2, rel=1e-6)
    assert float(loss.metrics["train_psnr"]) == pytest.approx(float(-10 * error.log10().mean()))


@pytest.mark.parametrize("decibels", [False, True])
def test_the_surrogate_has_the_scale_of_the_loss(decibels):
    """Its derivative in a learned weight is that of the value, by finite differences."""
    net, e = learner(), 1e-4
    exact = cl.StopWhen(gap=1e-11, max_iterations=3000)
    hypergradient = Implicit(damping=1e-8, iterations=200, tolerance=1e-8)
    batch = batch_of(waves(3, SIZE), 1)  # the second task's turn

    def objective(logarithm: float) -> Bilevel:
        tasks = [(SaltAndPepper(), 1.0), (GaussianDenoising(0.15), math.exp(logarithm))]
        return Bilevel(tasks, hypergradient=hypergradient, stop=exact, decibels=decibels)

    here = objective(0.5)
    here(net, batch).surrogate.backward()
    high, low = (float(objective(0.5 + sign)(net, batch).value) for sign in (e, -e))
    assert float(here.other_log_weights.grad) == pytest.approx((high - low) / (2 * e), rel=1e-3)


def test_further_weights_are_learned_and_the_first_stays():
    net = learner()
    tasks = [(GaussianDenoising(0.1), 2.0), (Inpainting(), 0.5), (Inpainting(0.5), 0.25)]
    objective = Bilevel(tasks, stop=STOP)
    names = ["gaussian-denoising", "inpainting", "inpainting 2"]
    assert objective.weights == dict(zip(names, map(pytest.approx, (2.0, 0.5, 0.25)), strict=True))
    images = waves(3, SIZE)
    for step in range(3):
        before = objective.weights
        optimiser = torch.optim.SGD(objective.parameters(), 1e4)
        optimiser.zero_grad()
        objective(net, batch_of(images, step)).surrogate.backward()
        optimiser.step()
        moved = [name for name in names if objective.weights[name] != before[name]]
        assert moved == ([] if step == 0 else [names[step]])


def test_turns_choose_the_task_of_a_step_and_weights_can_be_fixed():
    tasks = [(GaussianDenoising(0.1), 1.0), (SaltAndPepper(0.2), 3.0)]
    objective = Bilevel(tasks, turns=(0, 1, 0), learn_weights=False, stop=STOP)
    for step in range(6):
        loss = objective(learner(), batch_of(waves(3, SIZE), step))
        alone = Bilevel([tasks[(0, 1, 0)[step % 3]]], stop=STOP)(
            learner(), batch_of(waves(3, SIZE), step)
        )
        assert torch.equal(loss.value, alone.value)
    assert not any(parameter.requires_grad for parameter in objective.parameters())
    with pytest.raises(ValueError, match=r"every number from 0 to 1, got \(0, 2\)"):
        Bilevel(tasks, turns=(0, 2))


def test_warm_starts_save_iterations_and_survive_a_checkpoint(tmp_path):
    net, images = learner(), waves(4, SIZE)
    task, stop = Inpainting(0.4), cl.StopWhen(gap=1e-5, max_iterations=2000, check_every=1)

    def bilevel() -> Bilevel:
        return Bilevel([(task, 1.0)], stop=stop, warm_starts=4)

    objective = bilevel()
    sampler = [batch_of(images, step, size=2, fixed=True) for step in range(4)]
    cold = [float(objective(net, batch).metrics["iterations"]) for batch in sampler[:2]]
    warm = [float(objective(net, batch).metrics["iterations"]) for batch in sampler[2:]]
    assert sum(warm) < 0.8 * sum(cold)

    torch.save(objective.state_dict(), tmp_path / "state.pt")
    resumed = bilevel()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for batch in sampler[2:]:
        a, b = objective(net, batch), resumed(net, batch)
        assert float(a.metrics["iterations"]) == float(b.metrics["iterations"])
        assert torch.equal(a.surrogate, b.surrogate)
    # Without them, the run would be another.
    assert float(bilevel()(net, sampler[2]).metrics["iterations"]) > warm[0]


def test_images_not_seen_before_start_cold():
    net, images = learner(), waves(4, SIZE)
    objective = Bilevel([(GaussianDenoising(), 1.0)], stop=STOP, warm_starts=4)
    objective(net, batch_of(images, 0, size=2, fixed=True))
    stored = objective.get_extra_state()["0"]
    assert torch.isfinite(stored).flatten(1).all(1).sum() == 2
    loss = objective(net, batch_of(images, 0, size=4, fixed=True))
    assert math.isfinite(float(loss.value))
    assert torch.isfinite(objective.get_extra_state()["0"]).all()


def test_bilevel_input_that_makes_no_sense():
    tasks = [(GaussianDenoising(), 1.0)]
    with pytest.raises(ValueError, match="Bilevel needs at least one task with its weight"):
        Bilevel([])
    with pytest.raises(ValueError, match=r"gaussian-denoising needs a weight > 0, got 0\.0"):
        Bilevel([(GaussianDenoising(), 0.0)])
    with pytest.raises(ValueError, match="warm_starts must be a number of training images, got -1"):
        Bilevel(tasks, warm_starts=-1)
    with pytest.raises(ValueError, match=r"need samples that do not change: write BatchSampler\("):
        Bilevel(tasks, warm_starts=3)(learner(), batch_of(waves(3, SIZE)))
    with pytest.raises(ValueError, match="no place among 2 warm starts; write warm_starts=len"):
        Bilevel(tasks, warm_starts=2)(learner(), batch_of(waves(3, SIZE), fixed=True))
