"""The paper's trainings as the authors ran them: starts, pictures, steps and settings."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from quick_training import same_weights
from torch import Tensor
from training_runs import crops

import convexlift as cl
from convexlift.tasks import Inpainting
from convexlift.training import (
    Adversarial,
    BatchSampler,
    Bilevel,
    ImageSet,
    JacobianFree,
    NetworkSettings,
    TrainingOptions,
    Validation,
    follow,
    presets,
    train,
)
from convexlift.training.cards import training_card
from convexlift.training.initialization import start_uniformly_
from convexlift.training.objectives import Loss, Objective

pytestmark = pytest.mark.single_precision


def slope(network: cl.InputConvexNetwork, x: Tensor) -> float:
    """||grad R(x)||, by autograd."""
    leaf = x.clone().requires_grad_()
    return float(torch.autograd.grad(network(leaf).sum(), leaf)[0].norm())


def always_on(smoothing: float = 0.0) -> cl.InputConvexNetwork:
    """A small network whose hidden units do not vanish."""
    network = NetworkSettings("baseline", channels=2, smoothing=smoothing).build((16, 16), 0)
    torch.nn.init.ones_(network.layers[-1].bias)
    return network


# The start


@pytest.mark.parametrize(("architecture", "largest"), [("baseline", 0.01), ("deep", 0.001)])
def test_nonnegative_weights_are_uniform_and_biases_as_in_torch(architecture, largest):
    settings = NetworkSettings(architecture, channels=16, uniform=largest, hidden=64)
    network = settings.build((64, 64), seed=3).requires_grad_(False)
    ours = replace(settings, uniform=None).build((64, 64), seed=3)
    same = ours.layers[0].skip.weight
    assert torch.equal(network.layers[0].skip.weight, same)
    drawn = [*(p for layer in network.layers[1:] for p in layer.previous.parameters())]
    for weight in (*drawn, network.output):
        assert float(weight.min()) >= 0
        assert float(weight.max()) <= largest
        deviation = 4 * largest / math.sqrt(12 * weight.numel())  # four standard errors
        assert float(weight.mean()) == pytest.approx(largest / 2, abs=deviation)
    for layer in network.layers:
        weight = next((layer.skip or layer.previous).parameters())
        bound = 1 / math.sqrt(weight[0].numel())
        assert float(layer.bias.abs().max()) <= bound
        assert float(layer.bias.abs().max()) > 0.7 * bound
    assert network.layers[-1].channels == 64
    again = settings.build((64, 64), seed=3)
    assert same_weights(network.state_dict(), again.state_dict())
    with pytest.raises(ValueError, match="largest > 0, got 0"):
        start_uniformly_(again, 0.0)


def test_the_authors_start_is_53_times_as_steep():
    """256 units of mean 0.005^2 against one row of mean 1/8192: 52.4 for all-active units."""
    x = torch.rand(1, 1, 256, 256, generator=torch.Generator().manual_seed(0))
    settings = NetworkSettings("baseline")
    theirs, ours = (
        replace(settings, uniform=largest).build((256, 256), 0) for largest in (0.01, None)
    )
    assert slope(theirs, x) / slope(ours, x) == pytest.approx(53, rel=0.05)


# What the critic sees


def test_the_critics_pictures_have_noise_in_the_holes_and_are_clamped():
    clean = torch.rand(2, 1, 64, 64, generator=torch.Generator().manual_seed(8))
    mask = (torch.rand(64, 64, generator=torch.Generator().manual_seed(7)) > 0.3).float()

    def picture(**settings: object) -> Tensor:
        generators = [torch.Generator().manual_seed(i) for i in range(2)]
        return Inpainting(noise=0.03, mask=mask, **settings).measure(clean, generators).picture

    seen, found = picture(fill="zero"), picture(fill="noise")
    torch.testing.assert_close(found * mask, seen)
    holes = found[..., mask == 0]
    assert float(holes.std()) == pytest.approx(0.03, rel=0.05)
    assert abs(float(holes.mean())) < 0.003
    assert torch.equal(picture(fill="noise", clamp=(0.0, 1.0)), found.clamp(0, 1))
    with pytest.raises(ValueError, match="lower < upper"):
        Inpainting(clamp=(1.0, 0.0))


def test_noise_is_drawn_once_and_places_on_lines_in_every_epoch():
    batches, network = BatchSampler(crops(4, 16), 4, fixed=True), always_on()
    objective = Adversarial(Inpainting(), penalty=0.0)
    first, second = (objective(network, batches.batch(step)) for step in (0, 1))
    torch.testing.assert_close(first.value, second.value)  # the same pictures
    assert float(first.metrics["steepness"]) != float(second.metrics["steepness"])


def test_without_held_out_images_the_last_weights_are_kept():
    recipe = replace(
        presets.PAPER_INPAINTING, network=NetworkSettings("baseline", channels=2, uniform=0.01),
        batch_size=2, options=replace(presets.PAPER_INPAINTING.options, steps=3),
    )  # fmt: skip
    images = crops(4, 16)
    result = follow(recipe, images)
    assert result.validation is None
    assert result.trained.step == 3
    assert result.weights == {"inpainting": 0.1}
    card = training_card(recipe, result, images, name="paper")
    assert card.weight == 0.1
    assert card.weight_choice == "taken from the recipe"


# Adam


class Parabola(Objective):
    """A multiple of the sum of squares of the first filters."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, network, batch) -> Loss:
        value = self.factor * network.layers[0].skip.weight.square().sum()
        return Loss(value, value.detach())


def trained_parabola(factor: float, **options: float) -> cl.training.Trained:
    network = NetworkSettings("ridge", channels=2).build((16, 16), 0)
    batches = BatchSampler(crops(5, 16), 2)
    return train(network, Parabola(factor), batches, TrainingOptions(7, 0.1, **options))


def test_a_scaled_loss_needs_a_scaled_epsilon():
    first, scaled, wrong = (
        trained_parabola(factor, epsilon=epsilon).network.state_dict()
        for factor, epsilon in ((1, 2.0**-27), (2.0**-30, 2.0**-57), (2.0**-30, 2.0**-27))
    )
    assert same_weights(first, scaled)
    assert not same_weights(first, wrong)


def test_the_learning_rate_decays_after_each_epoch():
    rates = [row["learning_rate"] for row in trained_parabola(1.0, decay=0.5).rows]
    assert rates == pytest.approx([0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.025])  # 5 images by 2
    for wrong in ({"decay": 0.0}, {"epsilon": -1.0}):
        with pytest.raises(ValueError, match="must be positive"):
            TrainingOptions(7, **wrong)


# Bilevel learning


def test_the_jacobian_free_step_of_the_authors():
    network = always_on(smoothing=0.05)
    truth = torch.rand(3, 1, 16, 16)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(truth + 0.1), regularizer=network, weight=0.1
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=3))
    found, expected = (
        JacobianFree(step).surrogate(problem, solution, truth)
        for step in (None, 1 / slope(network, truth))
    )
    torch.testing.assert_close(found, expected)


def test_in_training_this_step_is_one_number_for_all_batches():
    network, batches = always_on(smoothing=0.05), BatchSampler(crops(5, 16), 2)
    objective = Bilevel([(Inpainting(box=None), 0.1)], hypergradient=JacobianFree(None))
    objective.prepare(network, batches, step=0)
    largest = max(slope(network, batches.batch(k).clean) for k in range(3))
    fixed = Bilevel([(Inpainting(box=None), 0.1)], hypergradient=JacobianFree(1 / float(largest)))
    found, expected = (each(network, batches.batch(0)).surrogate for each in (objective, fixed))
    torch.testing.assert_close(found, expected)
    with torch.no_grad():
        network.output.mul_(2.0)
    resumed = Bilevel([(Inpainting(box=None), 0.1)], hypergradient=JacobianFree(None))
    resumed.load_state_dict(objective.state_dict())
    for each in (objective, resumed):
        each.prepare(network, batches, step=4)
        assert each.get_extra_state()["steepness"] == pytest.approx(float(largest))
        each.prepare(network, batches, step=5)
        assert each.get_extra_state()["steepness"] == pytest.approx(2 * float(largest))
    with torch.no_grad():
        network.output.zero_()
    with pytest.raises(FloatingPointError, match="R is flat at all training images before step 11"):
        objective.prepare(network, batches, step=10)


@pytest.mark.parametrize("from_picture", [True, False])
def test_reconstructions_start_at_the_picture_if_asked_to(from_picture):
    batch = BatchSampler(crops(3, 16), 3).batch(0)
    network = NetworkSettings("baseline", channels=2, smoothing=0.05).build((16, 16), 0)
    task = Inpainting(fill="zero", box=None)
    objective = Bilevel(
        [(task, 0.1)], stop=cl.StopWhen(gap=None, max_iterations=0), from_picture=from_picture,
        hypergradient=JacobianFree(),
    )  # fmt: skip
    picture = task.measure(batch.clean, batch.generators()).picture
    error = float((picture - batch.clean).square().mean() / 2)
    value = float(objective(network, batch).value)
    assert (value == pytest.approx(error)) == from_picture


def test_validations_start_at_the_picture_if_asked_to():
    images, network = crops(2, 16), always_on(smoothing=0.05)
    task, stop = Inpainting(fill="zero", box=None), cl.StopWhen(gap=None, max_iterations=0)
    guessed, plain = (
        float(Validation(task, images, stop=stop, from_picture=chosen)(network).psnr.mean())
        for chosen in (False, True)
    )
    # 30 % of black pixels: an error of 0.3 mean x^2, and that of the noise.
    clean = torch.stack([images[i] for i in range(2)])
    error = 0.3 * clean.square().mean((1, 2, 3)) + 0.7 * 0.03**2
    assert plain == pytest.approx(float(-10 * error.log10().mean()), abs=1)
    assert guessed > plain + 3


def test_the_papers_bilevel_recipes_run_and_stop_by_the_gradient():
    for recipe in (presets.PAPER_BILEVEL, presets.PAPER_BILEVEL_NMAPG):
        small = replace(
            recipe, network=replace(recipe.network, channels=4), images=4, held_out=1,
            options=replace(recipe.options, steps=2, validate_every=2),
        )  # fmt: skip
        result = follow(small, ImageSet.from_tensors(list(torch.rand(5, 16, 16))))
        iterations = [row["iterations"] for row in result.trained.rows]
        assert 0 < max(iterations) < recipe.stop.max_iterations
        assert result.trained.score is not None
        assert result.validation.from_picture


def test_the_settings_of_the_released_code():
    """example_ar_training.py, bilevel_training.py, example_bilevel_training.py and models.py."""
    critic, bilevel = presets.PAPER_INPAINTING, presets.PAPER_BILEVEL
    assert (critic.options.learning_rate, critic.options.betas) == (5e-4, (0.5, 0.99))
    assert (critic.penalty, critic.batch_size, critic.options.steps) == (5.0, 8, 20 * 1000 // 8)
    assert (critic.network.smoothing, critic.network.uniform) == (0.01, 0.01)
    assert presets.PAPER_CT_DEEP.network.uniform == 0.001
    assert presets.PAPER_CT.network.hidden == 512
    options = bilevel.options
    assert (options.learning_rate, options.betas, options.decay) == (1e-3, (0.9, 0.999), 0.99)
    assert bilevel.images * 30 == options.steps * bilevel.batch_size
    assert (bilevel.stop.gradient, bilevel.stop.max_iterations) == (0.1, 500)
    assert bilevel.method == cl.PDHG(steps=cl.PaperSteps((0.01, 0.001), as_released=True))
    nmapg = cl.NMAPG(0.1, shrink=0.9, decrease=0.1, memory=0.8, short_steps=True, longest_step=1.0,
                     slack=1e-4)  # fmt: skip
    assert presets.PAPER_BILEVEL_NMAPG.method == nmapg
