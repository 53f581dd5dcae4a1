"""Published regularizers: each conversion beside the published definition, written out in torch."""

from __future__ import annotations

import json
import math

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

import convexlift as cl
from convexlift.models.interop.loading import REFUSED

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


def learned_ridge(state: dict[str, Tensor], x: Tensor, weak: float) -> Tensor:
    s, factor, zoom = unwrap(state)
    weights = [centred(s[f"filters.0.{ORIGINAL}"]), s["filters.1.weight"], s["filters.2.weight"]]
    dirac = torch.zeros(1, 1, 25, 25)
    dirac[0, 0, 12, 12] = 1
    norm = torch.fft.fft2(transposed(chained(dirac, weights), weights), s=[256, 256]).abs().max()
    u = chained(zoom * x / norm.sqrt(), weights) * s["scaling"].exp()

    def smooth_l1(t: Tensor) -> Tensor:
        return (t**2).clamp(0, 1) / 2 + t.abs().clamp_min(1) - 1

    value = smooth_l1(s["beta"].exp() * u) * torch.exp(-s["beta"]) - weak * smooth_l1(u)
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


def goujon_wcrr_state(knots: int = 21) -> dict[str, Tensor]:
    return {
        "mu_": torch.tensor(1.2),
        f"conv_layer.conv_layers.0.{ORIGINAL}": normal(2, 1, 5, 5),
        "conv_layer.conv_layers.1.weight": normal(6, 2, 5, 5),
        "activation_cvx.coefficients": normal(1, knots, size=0.1),
        "activation_ccv.coefficients": normal(1, knots, size=0.1),
        "spline_scaling.coefficients": 3 + normal(6, 11),
    }  # fmt: skip


def goujon_config(rho: float, reach: float = 0.3) -> dict[str, object]:
    return {
        "rho_wcvx": rho, "noise_range": [0, 30],
        "spline_activation": {"x_min": -reach, "x_max": reach},
    }  # fmt: skip


def goujon_wcrr(state: dict[str, Tensor], x: Tensor, rho: float) -> Tensor:
    sigma = 255 * NOISE
    weights = [
        centred(state[f"conv_layer.conv_layers.0.{ORIGINAL}"]),
        state["conv_layer.conv_layers.1.weight"],
    ]
    dirac = torch.zeros(1, 1, 17, 17)
    dirac[0, 0, 8, 8] = 1
    kernel = F.pad(transposed(chained(dirac, weights), weights), [123] * 4)
    norm = torch.fft.fft2(kernel).abs().max()
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

    convex, concave = (potential(state[f"activation_{p}.coefficients"]) for p in ("cvx", "ccv"))
    return pixels((state["mu_"].exp() * convex - rho * concave) / scale**2)


# ACR, LION, deepinv


def acr_state(channels: int = 4, layers: int = 2) -> dict[str, Tensor]:
    state = {"final_conv2d.weight": normal(1, channels, 5, 5)}
    for i in range(layers + 1):
        state |= {f"wx.{i}.weight": normal(channels, 1, 5, 5), f"wx.{i}.bias": normal(channels)}
    return state | {f"wz.{i}.weight": normal(channels, channels, 5, 5) for i in range(layers)}


def acr(state: dict[str, Tensor], x: Tensor) -> Tensor:
    z = F.leaky_relu(F.conv2d(x, state["wx.0.weight"], state["wx.0.bias"], padding=2), 0.2)
    for i in range(2):
        skip = F.conv2d(x, state[f"wx.{i + 1}.weight"], state[f"wx.{i + 1}.bias"], padding=2)
        mixed = F.conv2d(z, state[f"wz.{i}.weight"].clamp_min(0), padding=2)
        z = F.leaky_relu(mixed + skip, 0.2)
    return F.conv2d(z, state["final_conv2d.weight"].clamp_min(0), padding=2).mean((1, 2, 3))


def lion_state() -> dict[str, Tensor]:
    theirs, state = acr_state(), {}
    for kind in ("weight", "bias"):
        state[f"first_layer.{kind}"] = theirs[f"wx.0.{kind}"]
        for i in range(2):
            state[f"ICNN_layer_{i}.orange.{kind}"] = theirs[f"wx.{i + 1}.{kind}"]
    for i in range(2):
        state[f"ICNN_layer_{i}.blue.{ORIGINAL}"] = theirs[f"wz.{i}.weight"]
    return state | {f"last_layer.{ORIGINAL}": theirs["final_conv2d.weight"]}


def lion(state: dict[str, Tensor], x: Tensor) -> Tensor:
    z = F.leaky_relu(
        F.conv2d(x, state["first_layer.weight"], state["first_layer.bias"], padding="same"), 0.2
    )
    for i in range(2):
        name = f"ICNN_layer_{i}"
        blue = F.conv2d(z, state[f"{name}.blue.{ORIGINAL}"].clip(min=0), padding="same")
        weight, bias = (state[f"{name}.orange.{kind}"] for kind in ("weight", "bias"))
        z = F.leaky_relu(blue + F.conv2d(x, weight, bias, padding="same"), 0.2)
    z = F.conv2d(z, state[f"last_layer.{ORIGINAL}"].clip(min=0), padding="same")
    return F.adaptive_avg_pool2d(z, 1).flatten()


def filter_bank_state(norm: bool) -> dict[str, Tensor]:
    state = {"penalty": torch.tensor([-1.3])} | {f"conv.{i}.weight": normal(4, 1, 7, 7)
                                                 for i in range(2)}  # fmt: skip
    return state | ({"L2net.l2_penalty": torch.tensor([-2.0])} if norm else {})


def filter_bank(state: dict[str, Tensor], x: Tensor) -> Tensor:
    total = sum(pixels(F.conv2d(x, state[f"conv.{i}.weight"], padding=3).abs()) for i in range(2))
    value = F.softplus(state["penalty"]) * total
    if "L2net.l2_penalty" in state:
        value = value + F.softplus(state["L2net.l2_penalty"]) * pixels(x**2)
    return value


def squared_norm(state: dict[str, Tensor], x: Tensor) -> Tensor:
    return F.softplus(state["l2_penalty"]) * pixels(x**2)


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


CASES = {
    "learned-regularizers-icnn": (lambda: wrapped(learned_icnn_state()), learned_icnn, "a", {}),
    "learned-regularizers-icnn unwrapped": (learned_icnn_state, learned_icnn, "a", {}),
    "learned-regularizers-crr": (
        lambda: wrapped(learned_ridge_state()), lambda s, x: learned_ridge(s, x, 0.0),
        "CRR_bilevel_IFT_for_CT", {},
    ),
    "learned-regularizers-wcrr": (
        lambda: wrapped(learned_ridge_state()), lambda s, x: learned_ridge(s, x, 1.0),
        "WCRR_bilevel_IFT_for_CT", {},
    ),
    "learned-regularizers-wcrr, wide": (
        lambda: learned_ridge_state(-0.7), lambda s, x: learned_ridge(s, x, 1.0), "WCRR", {},
    ),
    "goujon-crr": (goujon_crr_state, goujon_crr, "a", {"config": GOUJON_CRR}),
    "goujon-crr, odd": (lambda: goujon_crr_state(True), goujon_crr, "a", {"config": GOUJON_CRR}),
    "goujon-crr, ReLU": (goujon_relu_state, goujon_relu, "a", {}),
    "goujon-wcrr, convex": (
        goujon_wcrr_state, lambda s, x: goujon_wcrr(s, x, 0.0), "a",
        {"config": goujon_config(0), "noise": NOISE},
    ),
    "goujon-wcrr": (
        goujon_wcrr_state, lambda s, x: goujon_wcrr(s, x, 0.9), "a",
        {"config": goujon_config(0.9), "noise": NOISE},
    ),
    "goujon-wcrr, even number of knots": (
        lambda: goujon_wcrr_state(20), lambda s, x: goujon_wcrr(s, x, 0.9), "a",
        {"config": goujon_config(0.9), "noise": NOISE},
    ),
    "acr": (acr_state, acr, "a", {}),
    "lion-acr": (lion_state, lion, "a", {}),
    "acr-filters": (lambda: filter_bank_state(False), filter_bank, "a", {}),
    "acr-filters of LION": (lambda: filter_bank_state(True), filter_bank, "a", {}),
    "acr-norm": (lambda: {"l2_penalty": torch.tensor([-0.5])}, squared_norm, "a", {}),
    "deepinv-icnn": (deepinv_state, deepinv_icnn, "a", {}),
    "deepinv-icnn, older": (
        lambda: deepinv_state("final_conv2d", 2), lambda s, x: deepinv_icnn(s, x, 1.5), "a",
        {"strong_convexity": 1.5},
    ),
}  # fmt: skip
WEAK = {name for name in CASES if "wcrr" in name and "convex" not in name}
every_case = pytest.mark.parametrize("case", CASES)


def converted(case, folder, dtype=torch.float64, seed=0):
    """The state of a case, its definition, and the network converted from its file."""
    make, definition, name, options = CASES[case]
    torch.manual_seed(seed)
    state = {key: tensor.to(dtype) for key, tensor in make().items()}
    config = options.get("config")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    torch.save(state, folder / f"{name}.pt")
    options = {key: value for key, value in options.items() if key != "config"}
    return state, definition, cl.interop.load(folder / f"{name}.pt", **options)


@every_case
def test_values_and_gradients_are_those_of_the_definition(case, tmp_path):
    state, definition, network = converted(case, tmp_path)
    assert isinstance(network, cl.WeaklyConvexNetwork) == (case in WEAK)
    x = torch.rand(2, 1, 19, 23).requires_grad_()
    expected, found = definition(state, x), network(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    ours, theirs = (torch.autograd.grad(value.sum(), x)[0] for value in (found, expected))
    error = torch.linalg.vector_norm(ours - theirs) / torch.linalg.vector_norm(theirs)
    assert float(error) < 1e-12


@every_case
def test_files_of_single_precision_make_networks_of_single_precision(case, tmp_path):
    state, definition, network = converted(case, tmp_path, torch.float32)
    assert all(parameter.dtype is torch.float32 for parameter in network.parameters())
    x = torch.rand(1, 1, 16, 16)
    exact = definition({name: tensor.double() for name, tensor in state.items()}, x.double())
    torch.testing.assert_close(network(x.float()).double(), exact, rtol=2e-4, atol=1e-5)


@every_case
def test_converted_networks_are_saved_and_loaded_bit_for_bit(case, tmp_path):
    _, _, network = converted(case, tmp_path)
    again = cl.load(cl.save(network, tmp_path / "saved", card=network.card))
    assert type(again) is type(network)
    for name, tensor in network.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)
    x = torch.rand(1, 1, 16, 16)
    assert torch.equal(again(x), network(x))
    card = cl.models.card(tmp_path / "saved")
    assert "its authors' terms" in card.license
    assert "github.com" in card.summary


@pytest.mark.parametrize("case", [case for case in CASES if case not in WEAK])
def test_converted_networks_are_solved_with_proofs_that_verify(case, tmp_path):
    _, _, network = converted(case, tmp_path)
    y = torch.rand(1, 1, 12, 12)
    (slope,) = torch.autograd.grad(network(y.requires_grad_()).sum(), y)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y.detach()), regularizer=network, box=(0, 1),
        weight=0.1 / float(slope.abs().mean()),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-2, max_iterations=3000))
    assert solution.status[0] is cl.Status.CONVERGED
    assert solution.guarantee[0] is cl.Guarantee.GLOBAL
    (verdict,) = cl.verify(solution.proof.save(tmp_path / "x.proof"))
    assert verdict.guarantee == "GLOBAL"
    assert verdict.gap <= 1.1e-2


def test_several_files_make_the_sum_of_their_regularizers(tmp_path):
    parts = [(acr_state(), acr), (filter_bank_state(False), filter_bank),
             ({"l2_penalty": torch.tensor([-0.5])}, squared_norm)]  # fmt: skip
    files = [tmp_path / f"{i}.pt" for i in range(3)]
    for file, (state, _) in zip(files, parts, strict=True):
        torch.save(state, file)
    network = cl.interop.load(files, dtype=torch.float64)
    x = torch.rand(2, 1, 12, 14)
    expected = sum(definition(state, x) for state, definition in parts)
    torch.testing.assert_close(network(x), expected, rtol=1e-12, atol=0)
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(x), regularizer=network, weight=1e-3, box=(0, 1)
    )
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-2, max_iterations=3000))
    assert all(v.guarantee == "GLOBAL" for v in cl.verify(solution.proof.save(tmp_path / "p")))
    again = cl.load(cl.save(network, tmp_path / "sum"))
    assert torch.equal(again(x), network(x))


def test_checkpoints_and_safetensors_hold_the_same(tmp_path):
    state = wrapped(learned_icnn_state())
    x = torch.rand(1, 1, 9, 9)
    torch.save({"epoch": 3, "state_dict": state, "best": "no"}, tmp_path / "checkpoint_3.pth")
    safetensors.torch.save_file(state, tmp_path / "plain.safetensors")
    torch.save({f"module.{k}": v for k, v in state.items()}, tmp_path / "parallel")
    expected = learned_icnn(state, x)
    for name in ("checkpoint_3.pth", "plain.safetensors", "parallel"):
        torch.testing.assert_close(
            cl.interop.load(tmp_path / name)(x), expected, rtol=1e-12, atol=0
        )
    torch.testing.assert_close(cl.load(tmp_path / "checkpoint_3.pth")(x), expected)


def test_zero_padding_between_convolutions_is_kept(tmp_path):
    """One merged convolution would differ near the edges, and only there."""
    state, _, network = converted("learned-regularizers-crr", tmp_path)
    weights = [map_.weight for map_ in network.layers[0].skip.maps]
    dirac = torch.zeros(1, 1, 13, 13)
    dirac[0, 0, 6, 6] = 1
    merged = chained(dirac, weights).flip(2, 3).transpose(0, 1)
    x = torch.rand(1, 1, 24, 24)
    ours, theirs = network.layers[0].skip(x), F.conv2d(x, merged, padding=6)
    torch.testing.assert_close(ours[..., 6:-6, 6:-6], theirs[..., 6:-6, 6:-6])
    assert not torch.allclose(ours, theirs)
    assert "alpha" in state


@pytest.mark.parametrize("case", ["learned-regularizers-wcrr", "goujon-crr", "goujon-wcrr"])
def test_merged_chains_are_the_published_regularizer_but_for_the_edges(case, tmp_path):
    _, _, network = converted(case, tmp_path)
    _, _, name, options = CASES[case]
    noise = {"noise": options["noise"]} if "noise" in options else {}
    merged = cl.interop.load(tmp_path / f"{name}.pt", merge=True, **noise)
    x = torch.zeros(1, 1, 40, 40)
    x[..., 14:26, 14:26] = torch.rand(12, 12)  # nothing near the edges
    torch.testing.assert_close(merged(x), network(x), rtol=1e-10, atol=0)
    assert type(merged.layers[0].skip).__name__ == "Convolution"
    assert not torch.allclose(merged(torch.ones_like(x)), network(torch.ones_like(x)), rtol=1e-6)


def test_the_card_says_where_a_network_came_from(tmp_path):
    _, _, network = converted("goujon-crr", tmp_path)
    assert network.card.name == "a"
    assert "axgoujon/convex_ridge_regularizers" in network.card.summary
    assert network.card.weights == {"published objective": 1.0}
    _, _, weak = converted("goujon-wcrr", tmp_path)
    assert "must be convex" in weak.card.not_for


# What is refused


def refusal(tmp_path, state, **options) -> str:
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"a\.pt") as caught:
        cl.interop.load(tmp_path / "a.pt", **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["icnn1.wx.bias", "icnn2.wx.bias"], "a difference of two convex networks"),
        (["regularizer.R.K1.weight", "regularizer.R.mb.0.conv.weight"], "total deep variation"),
        (["model.m_head.weight", "model.m_down1.0.res.0.weight"], "a DRUNet"),
        (["in_conv.weight", "conv_list.0.weight", "out_conv.weight"], "a DnCNN"),
        (["regularizer.cnn.0.weight", "regularizer.cnn.2.weight"], "weights of any sign"),
    ],
)
def test_networks_that_are_not_convex_are_refused_with_the_reason(tmp_path, names, reason):
    said = refusal(tmp_path, {name: normal(2, 2) for name in names})
    assert reason in said
    assert "no certificate" in said
    assert len(REFUSED) == 5


def test_unknown_files_are_refused_with_the_known_formats(tmp_path):
    said = refusal(tmp_path, {"layer.weight": normal(2, 2)})
    assert all(name in said for name in cl.interop.FORMATS)
    assert "layer.weight" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"icnn.extra": normal(2)}, "unexpected are icnn.extra"),
        ({"icnn.wz.bias": None}, "missing are icnn.wz.bias"),
        ({"icnn.wz.weight": normal(6, 5, 5, 5)}, r"icnn.wz.weight has the shape"),
        ({"icnn.wz.weight": torch.full((6, 6, 5, 5), math.nan)}, "not finite"),
        ({"icnn.smoothing": normal(2)}, "the number icnn.smoothing"),
        ({f"icnn.wx.{ORIGINAL}": normal(6, 1, 4, 4)}, "odd squares"),
    ],
)
def test_damaged_files_are_refused_by_the_tensor(tmp_path, change, said):
    state = {k: v for k, v in (learned_icnn_state() | change).items() if v is not None}
    assert said in refusal(tmp_path, state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alpha": torch.tensor(1e4)}, "too large for its exponential"),
        ({"regularizer.beta": torch.tensor(-1e4)}, "too large for its exponential"),
        ({"alpha": torch.tensor(200.0)}, "say dtype=torch.float64"),
    ],
)
def test_weights_beyond_a_precision_are_refused(tmp_path, change, said):
    state = {k: v.float() for k, v in (wrapped(learned_ridge_state()) | change).items()}
    assert said in refusal(tmp_path, state, format="learned-regularizers-crr")


def test_what_a_state_dict_does_not_say_must_be_given(tmp_path):
    assert "say which by format=" in refusal(tmp_path, learned_ridge_state())
    state = goujon_wcrr_state()
    assert "config.json" in refusal(tmp_path, state)
    (tmp_path / "config.json").write_text(json.dumps(goujon_config(1.0)))
    assert "give noise=..." in refusal(tmp_path, state)
    assert "outside the range" in refusal(tmp_path, state, noise=0.5)
    assert "noise=... is for goujon-wcrr" in refusal(tmp_path, learned_icnn_state(), noise=0.1)
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(tmp_path, state)
    with pytest.raises(ValueError, match="format 'x' is unknown; known are"):
        cl.interop.load(tmp_path / "a.pt", "x")
    with pytest.raises(ValueError, match="there is no such file"):
        cl.interop.load(tmp_path / "nothing.pt")


def test_weakly_convex_networks_are_no_part_of_convex_problems(tmp_path):
    _, _, network = converted("goujon-wcrr", tmp_path)
    with pytest.raises(ValueError, match="weakly convex"):
        cl.VariationalProblem(
            fidelity=cl.SquaredL2(torch.rand(1, 1, 9, 9)), regularizer=network, weight=1.0
        )
    network.concavity.data[0] = -1
    with pytest.raises(ValueError, match="concavity contains -1"):
        network.check_convexity()
