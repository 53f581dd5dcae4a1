"""Published regularizers: each conversion beside the published definition."""

from __future__ import annotations

import json
import math

import published_regularizers as published
import pytest
import safetensors.torch
import torch
from published_regularizers import CASES, ORIGINAL, normal

import convexlift as cl

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


@every_case
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


def test_checkpoints_and_safetensors_hold_the_same(tmp_path):
    state = published.wrapped(published.learned_icnn_state())
    x = torch.rand(1, 1, 9, 9)
    torch.save({"epoch": 3, "state_dict": state, "best": "no"}, tmp_path / "checkpoint_3.pth")
    safetensors.torch.save_file(state, tmp_path / "plain.safetensors")
    torch.save({f"module.{k}": v for k, v in state.items()}, tmp_path / "parallel")
    expected = published.learned_icnn(state, x)
    for name in ("checkpoint_3.pth", "plain.safetensors", "parallel"):
        torch.testing.assert_close(
            cl.interop.load(tmp_path / name)(x), expected, rtol=1e-12, atol=0
        )
    torch.testing.assert_close(cl.load(tmp_path / "checkpoint_3.pth")(x), expected)


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
        (["wx.0.weight", "wz.0.weight", "final_conv2d.weight"], "adversarial convex regularizer"),
        (["first_layer.weight", "ICNN_layer_0.orange.weight"], "adversarial convex regularizer"),
        (["penalty", "conv.0.weight"], "adversarial convex regularizer"),
        (["penalty", "conv.0.weight", "L2net.l2_penalty"], "adversarial convex regularizer"),
        (["l2_penalty"], "adversarial convex regularizer"),
    ],
)
def test_networks_that_are_not_read_are_refused_with_the_reason(tmp_path, names, reason):
    assert reason in refusal(tmp_path, {name: normal(2, 2) for name in names})


def test_weakly_convex_regularizers_are_refused_by_name(tmp_path):
    torch.save(published.learned_ridge_state(), tmp_path / "WCRR_bilevel.pt")
    with pytest.raises(ValueError, match=r"by its name it is a weakly convex .*\(WCRR\)"):
        cl.interop.load(tmp_path / "WCRR_bilevel.pt")
    (tmp_path / "config.json").write_text(json.dumps(published.goujon_config(1.0)))
    said = refusal(tmp_path, published.goujon_2024_state(), noise=published.NOISE)
    assert "its rho_wcvx is 1: it is a weakly convex" in said


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
    state = {k: v for k, v in (published.learned_icnn_state() | change).items() if v is not None}
    assert said in refusal(tmp_path, state)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alpha": torch.tensor(1e4)}, "too large for its exponential"),
        ({"regularizer.beta": torch.tensor(-1e4)}, "too large for its exponential"),
        ({"alpha": torch.tensor(200.0)}, "e+85; rescale"),
        ({"alpha": torch.tensor(92.0)}, "say dtype=torch.float64"),
    ],
)
def test_weights_beyond_a_precision_are_refused(tmp_path, change, said):
    state = published.wrapped(published.learned_ridge_state()) | change
    state = {k: v.float() for k, v in state.items()}
    assert said in refusal(tmp_path, state, format="learned-regularizers-crr")


def test_what_a_state_dict_does_not_say_must_be_given(tmp_path):
    said = refusal(tmp_path, published.learned_ridge_state())
    assert "if it is convex, say format='learned-regularizers-crr'" in said
    state = published.goujon_2024_state()
    assert "config.json" in refusal(tmp_path, state)
    (tmp_path / "config.json").write_text(json.dumps(published.goujon_config()))
    assert "give noise=..." in refusal(tmp_path, state)
    assert "outside the range" in refusal(tmp_path, state, noise=0.5)
    other = published.learned_icnn_state()
    assert "noise=... is for goujon-crr-2024" in refusal(tmp_path, other, noise=0.1)
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read as JSON" in refusal(tmp_path, state)
    with pytest.raises(ValueError, match="format 'x' is unknown; known are"):
        cl.interop.load(tmp_path / "a.pt", "x")
    with pytest.raises(ValueError, match="there is no such file"):
        cl.interop.load(tmp_path / "nothing.pt")
