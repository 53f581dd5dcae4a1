"""Published regularizers: random weights as their files hold them, and definitions in torch."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

ORIGINAL = "parametrizations.weight.original"
NOISE = 17.3 / 255


def normal(*shape: int, size: float = 0.3) -> Tensor:
    return size * torch.randn(shape)


def centred(weight: Tensor) -> Tensor:
    return weight - weight.mean((1, 2, 3), keepdim=True)


def chained(x: Tensor, weights: list[Tensor]) -> Tensor:
    """Convolutions, each of them zero-padded."""
    for weight in weights:
        x = F.conv2d(x, weight, padding=weight.shape[-1] // 2)
    return x


def transposed(y: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in reversed(weights):
        y = F.conv_transpose2d(y, weight, padding=weight.shape[-1] // 2)
    return y


def filter_norm(weights: list[Tensor], size: int, grid: int) -> Tensor:
    """The largest value of the Fourier transform of W* W, as both groups of authors take it."""
    dirac = torch.zeros(1, 1, size, size)
    dirac[..., size // 2, size // 2] = 1
    return torch.fft.fft2(transposed(chained(dirac, weights), weights), s=[grid] * 2).abs().max()


def pixels(values: Tensor) -> Tensor:
    return values.flatten(1).sum(1)


# LearnedRegularizers


def wrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    extra = {"alpha": torch.tensor(0.4), "scale": torch.tensor(0.3)}
    return extra | {f"regularizer.{name}": tensor for name, tensor in state.items()}


def unwrap(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    if "alpha" not in state:
        return state, torch.tensor(1.0), torch.tensor(1.0)
    inner = {name.removeprefix("regularizer."): tensor for name, tensor in state.items()}
    return inner, torch.exp(state["alpha"] - 2 * state["scale"]), torch.exp(state["scale"])


def learned_icnn_state() -> dict[str, Tensor]:
    return {
        "icnn.smoothing": torch.tensor(-3.0), "icnn.scaling": normal(1, 6, 1, 1),
        "icnn.wx.bias": normal(6), f"icnn.wx.{ORIGINAL}": normal(6, 1, 5, 5),
        "icnn.wz.weight": normal(6, 6, 5, 5), "icnn.wz.bias": normal(6),
    }  # fmt: skip


def learned_icnn(state: dict[str, Tensor], x: Tensor) -> Tensor:
    s, factor, zoom = unwrap(state)
    nu = s["icnn.smoothing"].exp()

    def act(t: Tensor) -> Tensor:
        return t.clamp(0 * nu, nu) ** 2 / (2 * nu) + t.clamp_min(nu) - nu

    z = act(F.conv2d(zoom * x, centred(s[f"icnn.wx.{ORIGINAL}"]), s["icnn.wx.bias"], padding=2))
    z = act(F.conv2d(z, s["icnn.wz.weight"].clamp_min(0), s["icnn.wz.bias"], padding=2))
    return factor * pixels(z * s["icnn.scaling"].exp())


def learned_ridge_state(beta: float = 1.5) -> dict[str, Tensor]:
    return {
        "scaling": 1 + normal(1, 7, 1, 1), "beta": torch.tensor(beta),
        f"filters.0.{ORIGINAL}": normal(2, 1, 5, 5), "filters.1.weight": normal(3, 2, 5, 5),
        "filters.2.weight": normal(7, 3, 5, 5),
    }  # fmt: skip


def learned_ridge(state: dict[str, Tensor], x: Tensor) -> Tensor:
    s, factor, zoom = unwrap(state)
    weights = [centred(s[f"filters.0.{ORIGINAL}"]), s["filters.1.weight"], s["filters.2.weight"]]
    norm = filter_norm(weights, 25, 256)
    u = chained(zoom * x / norm.sqrt(), weights) * s["scaling"].exp()

    def smooth_l1(t: Tensor) -> Tensor:
        return (t**2).clamp(0, 1) / 2 + t.abs().clamp_min(1) - 1

    value = smooth_l1(s["beta"].exp() * u) * torch.exp(-s["beta"])
    return factor * pixels(value * torch.exp(-2 * s["scaling"]))


# Goujon et al.


def goujon_crr_state(odd: bool = False) -> dict[str, Tensor]:
    coefficients = normal(5, 21)
    if odd:
        coefficients = coefficients - coefficients.flip(1)
    return {
        "lmbd": torch.tensor(3.7), "mu": torch.tensor(1.9), "L": torch.tensor(1.0),
        f"conv_layer.conv_layers.0.{ORIGINAL}": normal(3, 1, 7, 7),
        f"conv_layer.conv_layers.1.{ORIGINAL}": normal(5, 3, 7, 7),
        "activation.coefficients_vect": coefficients.flatten(),
    }  # fmt: skip


GOUJON_CRR = {"activation_params": {"knots_range": 0.8, "n_knots": 21}}


def linear_spline(c: Tensor, step: float, low: float) -> tuple[Tensor, Tensor]:
    """Knots and values, extended far to both sides, where the spline is constant."""
    knots = low + step * torch.arange(c.shape[1])
    knots = torch.cat((torch.tensor([-1e3]), knots, torch.tensor([1e3])))
    return knots, torch.cat((c[:, :1], c, c[:, -1:]), 1)


def integral(knots: Tensor, values: Tensor, t: Tensor) -> Tensor:
    """int_0^t of a linear spline of each channel, exactly, piece by piece; t: (B, C, ...)."""
    total = torch.zeros_like(t)
    for j in range(len(knots) - 1):
        left, right = knots[j], knots[j + 1]
        ends = [(t.clamp(left, right) - left), (torch.zeros_like(t).clamp(left, right) - left)]
        shape = (-1, *[1] * (t.ndim - 2))
        v, slope = values[:, j].reshape(shape), ((values[:, j + 1] - values[:, j]) / (right - left))
        upper, lower = (v * d + slope.reshape(shape) * d**2 / 2 for d in ends)
        total = total + upper - lower
    return total


def goujon_crr(state: dict[str, Tensor], x: Tensor) -> Tensor:
    """lambda / mu R(mu x), R' = W* sigma(W x), with sigma made monotone, and 0 at 0."""
    weights = [centred(state[f"conv_layer.conv_layers.{i}.{ORIGINAL}"]) for i in range(2)]
    c = state["activation.coefficients_vect"].reshape(5, 21)
    slopes = c.diff(dim=1).clamp_min(0)
    slopes[:, 0], slopes[:, -1] = 0, 0
    c = torch.cat((torch.zeros(5, 1), slopes.cumsum(1)), 1)
    c = c - c[:, 10:11]
    lmbd, mu = state["lmbd"].clamp_min(1e-4), state["mu"].clamp_min(0.01)
    values = integral(*linear_spline(c, 0.08, -0.8), chained(mu * x, weights))
    return lmbd / mu * pixels(values)


def goujon_relu_state() -> dict[str, Tensor]:
    state = goujon_crr_state()
    del state["activation.coefficients_vect"]
    return state | {"bias": normal(1, 5, 1, 1)}


def goujon_relu(state: dict[str, Tensor], x: Tensor) -> Tensor:
    weights = [centred(state[f"conv_layer.conv_layers.{i}.{ORIGINAL}"]) for i in range(2)]
    a = chained(state["mu"] * x, weights) + state["bias"]
    return state["lmbd"] / state["mu"] * pixels(a.clamp_min(0) ** 2 / 2)


def goujon_2024_state(knots: int = 21) -> dict[str, Tensor]:
    return {
        "mu_": torch.tensor(1.2),
        f"conv_layer.conv_layers.0.{ORIGINAL}": normal(2, 1, 5, 5),
        "conv_layer.conv_layers.1.weight": normal(6, 2, 5, 5),
        "activation_cvx.coefficients": normal(1, knots, size=0.1),
        "activation_ccv.coefficients": normal(1, knots, size=0.1),
        "spline_scaling.coefficients": 3 + normal(6, 11),
    }  # fmt: skip


def goujon_config(rho: float = 0.0, reach: float = 0.3) -> dict[str, object]:
    return {
        "rho_wcvx": rho, "noise_range": [0, 30],
        "spline_activation": {"x_min": -reach, "x_max": reach},
    }  # fmt: skip


def goujon_2024(state: dict[str, Tensor], x: Tensor) -> Tensor:
    sigma = 255 * NOISE
    weights = [
        centred(state[f"conv_layer.conv_layers.0.{ORIGINAL}"]),
        state["conv_layer.conv_layers.1.weight"],
    ]
    norm = filter_norm(weights, 17, 263)
    table, i = state["spline_scaling.coefficients"], int(sigma / 3)
    between = table[:, i] + (sigma / 3 - i) * (table[:, i + 1] - table[:, i])
    scale = (between.exp() / (sigma + 1e-5)).reshape(-1, 1, 1)
    t = scale * chained(x / norm.sqrt(), weights)

    def potential(c: Tensor) -> Tensor:
        step = 0.6 / (c.shape[1] - 1)
        slopes = (c.diff(dim=1) / step).clamp(0, 1)
        slopes[:, 0], slopes[:, -1] = 0, 0
        c = torch.cat((torch.zeros(1, 1), slopes.cumsum(1) * step), 1)
        c = (c - c.flip(1)) / 2
        return integral(*linear_spline(c, step, -0.3), t)

    return pixels(state["mu_"].exp() * potential(state["activation_cvx.coefficients"]) / scale**2)


# deepinv


def deepinv_state(final: str = "final_conv", outputs: int = 1) -> dict[str, Tensor]:
    state = {f"{final}.weight": normal(outputs, 4, 5, 5)}
    for i in range(3):
        state |= {
            f"wx_quad.{i}.weight": normal(4, 1, 5, 5), f"wx_lin.{i}.weight": normal(4, 1, 5, 5),
            f"wx_lin.{i}.bias": normal(4),
        }  # fmt: skip
    return state | {f"wz.{i}.weight": normal(4, 4, 5, 5) for i in range(2)}


def deepinv_icnn(state: dict[str, Tensor], x: Tensor, mu: float = 0.5) -> Tensor:
    def circular(z: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return F.conv2d(F.pad(z, [2] * 4, mode="circular"), weight, bias)

    z = torch.zeros_like(x)
    for i in range(3):
        a = circular(x, state[f"wx_quad.{i}.weight"]) ** 2
        a = a + circular(x, state[f"wx_lin.{i}.weight"], state[f"wx_lin.{i}.bias"])
        if i > 0:
            a = a + circular(z, state[f"wz.{i - 1}.weight"].clamp_min(0))
        z = F.leaky_relu(a, 0.2)
    (final,) = [tensor for name, tensor in state.items() if name.startswith("final")]
    outputs = circular(z, final.clamp_min(0)).mean((2, 3))
    return (outputs + mu / 2 * pixels(x**2)[:, None]).sum(1)


GOUJON_2024 = {"config": goujon_config(), "noise": NOISE}
CASES = {
    "learned-regularizers-icnn": (lambda: wrapped(learned_icnn_state()), learned_icnn, "a", {}),
    "learned-regularizers-icnn unwrapped": (learned_icnn_state, learned_icnn, "a", {}),
    "learned-regularizers-crr": (
        lambda: wrapped(learned_ridge_state()), learned_ridge, "CRR_bilevel_IFT_for_CT", {},
    ),
    "learned-regularizers-crr unwrapped": (
        lambda: learned_ridge_state(-0.7), learned_ridge, "CRR", {},
    ),
    "goujon-crr": (goujon_crr_state, goujon_crr, "a", {"config": GOUJON_CRR}),
    "goujon-crr, odd": (lambda: goujon_crr_state(True), goujon_crr, "a", {"config": GOUJON_CRR}),
    "goujon-crr, ReLU": (goujon_relu_state, goujon_relu, "a", {}),
    "goujon-crr-2024": (goujon_2024_state, goujon_2024, "a", GOUJON_2024),
    "goujon-crr-2024, even number of knots": (
        lambda: goujon_2024_state(20), goujon_2024, "a", GOUJON_2024,
    ),
    "deepinv-icnn": (deepinv_state, deepinv_icnn, "a", {}),
    "deepinv-icnn, older": (
        lambda: deepinv_state("final_conv2d", 2), partial(deepinv_icnn, mu=1.5), "a",
        {"strong_convexity": 1.5},
    ),
}  # fmt: skip
