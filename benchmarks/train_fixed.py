"""Train one convex regularizer for all noise levels and three tasks; every step is one CUDA graph.

    python benchmarks/train_fixed.py FOLDER MODEL [--seconds 300] [--start MODEL]

The lower levels of ``train_adaptive``, with weights that are the same for all pixels and pictures,

    min_x 1/2 ||x - y||^2 + gamma(sigma) <w, h(V x)>

gamma is learned at some noise levels and interpolated, and once more for salt and pepper. In the
end R absorbs gamma(0.1), so that its weight for that noise is 1.
"""

from __future__ import annotations

import math

import torch
import train_adaptive
import training_crops
from crop_kernels import Reading
from torch import Tensor, nn
from train_adaptive import Training, train
from training_crops import Data, read_both

import convexlift as cl
from convexlift import networks
from convexlift.networks.adaptive import UNSTATED_NOISE
from convexlift.tasks import GaussianDenoising
from convexlift.training.initialization import start_from_filters_

LEVELS = [2 / 255, 5 / 255, 10 / 255, 15 / 255, 25 / 255, 35 / 255, 55 / 255]
SCALE = 200.0
"""W_L is this many times larger in training, about 1, as its learning rate is made for."""
LEVEL = 0.1
"""The noise for which the weight is 1 in the end."""


class FixedTraining(Training):
    """Images keep their units: neither w nor the width of h follows the noise."""

    def __init__(self, network: cl.InputConvexNetwork, pictures: Tensor, others: Tensor) -> None:
        network.output.data.mul_(SCALE)
        self.levels = torch.tensor(LEVELS, device=pictures.device).log()
        self.log_weights = nn.Parameter(1.15 * (self.levels - math.log(LEVEL)) - math.log(SCALE))
        self.log_robust = nn.Parameter(torch.tensor(math.log(7.5 / SCALE)).to(pictures.device))
        super().__init__(network, pictures, others)  # type: ignore[arg-type]

    def read_by(self) -> list[nn.Parameter]:
        """The logarithms of gamma."""
        return [self.log_weights, self.log_robust]

    def log_weight(self, noise: Tensor) -> Tensor:
        """log gamma, linear in log sigma between the levels."""
        ways = (noise.log()[..., None] - self.levels[:-1]) / self.levels.diff()
        return self.log_weights[0] + (ways.clamp(0, 1) * self.log_weights.diff()).sum(-1)

    def read(self, data: Data) -> Reading:
        """gamma w."""
        robust = data.noise == UNSTATED_NOISE  # of impulses; no random level is equal to it
        weight = torch.where(robust, self.log_robust, self.log_weight(data.noise)).exp()
        weights = weight * self.network.output.reshape(1, -1, 1, 1)
        margin = self.filters.shape[-1] - 1
        height, width = (n - margin for n in data.picture.shape[2:])
        return Reading(weights.expand(-1, -1, height, width))

    def unit(self, data: Data) -> float:
        """Of images in the lower level."""
        return 1.0

    def ratio(self, robust: bool) -> float:
        """Images have the size of the noise; so have dual variables, but not for L1."""
        return UNSTATED_NOISE if robust else 1.0

    def weights(self) -> dict[str, float]:
        """Learned, by noise level or task, for a W_L of the true size."""
        found = {f"{255 * level:.0f}": self.weight(level) for level in LEVELS}
        return found | {"salt and pepper": SCALE * float(self.log_robust.detach().exp())}

    def weight(self, noise: float) -> float:
        """gamma at a noise level, for a W_L of the true size."""
        level = torch.tensor(noise, device=self.filters.device)
        return SCALE * float(self.log_weight(level).detach().exp())

    def finished(self) -> cl.InputConvexNetwork:
        """A copy with a W_L of the true size."""
        made = networks.ridge(
            channels=len(self.filters), kernel=self.filters.shape[-1], smoothing=self.delta
        ).to(self.filters)
        made.load_state_dict(self.network.state_dict())
        made.output.data.mul_(self.weight(LEVEL) / SCALE)
        return made


def validate(training: FixedTraining, pictures: Tensor, name: str) -> str:
    """Mean PSNR, the largest gap and the most iterations on damaged pictures."""
    task, _ = train_adaptive.TESTS[name]
    others = {"inpainting": training.weight(0.03)} | training.weights()
    weight = training.weight(task.sigma) if isinstance(task, GaussianDenoising) else others[name]
    train_adaptive.TESTS[name] = (task, weight / training.weight(LEVEL))
    return train_adaptive.validate(training.finished(), pictures, name)  # type: ignore[arg-type]


def main() -> None:
    """Train and save."""
    parser = train_adaptive.arguments(__doc__, seconds=300.0)
    parser.add_argument("--channels", type=int, default=48)
    parser.add_argument("--kernel", type=int, default=7)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    training_crops.HIGHEST = LEVELS[-1]
    both = read_both(given.folder, given.others, colour=False)
    (pictures, held_out), (others, held_out_others) = both
    if given.start:
        network = cl.load(given.start)
    else:
        network = networks.ridge(channels=given.channels, kernel=given.kernel)
        start_from_filters_(network, 1.0)
        network.output.data.fill_(2e-3)
    training = FixedTraining(network.cuda(), pictures, others)

    def look() -> str:
        cl.save(training.finished().cpu(), given.model)
        return f"{validate(training, held_out[:8], 'sigma 25')}, {training.weights()}"

    train(training, given.seconds, look)
    print(look(), flush=True)
    for name in ("sigma 15", "sigma 25", "sigma 50", "inpainting", "salt and pepper"):
        pictures = held_out if name.startswith("sigma") else held_out_others[:8]
        print(validate(training, pictures, name), flush=True)


if __name__ == "__main__":
    main()
