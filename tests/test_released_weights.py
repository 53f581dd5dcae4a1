"""The authors' weight files, beside their network written out with torch.nn.functional."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.nn.functional as F

import convexlift as cl

SIZE, CHANNELS, HIDDEN, NU = 32, 4, 12, 0.01


def state_dict(deeper=False, prefix="icnn."):
    """Random weights with the names and shapes of the authors' ``state_dict()``, some negative."""
    sides = (SIZE // 16) ** 2
    shapes = {"wx.weight": (CHANNELS, 1, 5, 5), "wx.bias": (CHANNELS,)}
    for i in range(2 if deeper else 0):
        shapes |= {f"wz.{i}.weight": (CHANNELS, CHANNELS, 5, 5), f"wz.{i}.bias": (CHANNELS,)}
    shapes |= {
        "fc1.weight": (HIDDEN, sides * CHANNELS), "fc1.bias": (HIDDEN,),
        "fc2.weight": (1, HIDDEN), "fc2.bias": (1,),
    }  # fmt: skip
    return {prefix + name: 0.3 * torch.randn(shape) + 0.1 for name, shape in shapes.items()}


def forward(state, x, nu):
    """R(x) as section 5 of the paper states it, for the weights of a state dict."""

    def relu(a):
        if nu == 0:
            return a.clamp_min(0)
        return torch.where(a < nu, a.clamp_min(0).square() / (2 * nu), a - nu / 2)

    def leaky(a):
        return 0.2 * a + 0.8 * relu(a)

    def layer(name, nonnegative=True):
        weight, bias = (state[f"icnn.{name}.{kind}"] for kind in ("weight", "bias"))
        return weight.clamp_min(0) if nonnegative else weight, bias

    z = leaky(F.conv2d(x, *layer("wx", nonnegative=False), padding=2))
    for i in range(2):
        if f"icnn.wz.{i}.weight" in state:
            z = leaky(F.conv2d(z, *layer(f"wz.{i}"), padding=2))
    z = relu(F.linear(F.avg_pool2d(z, 16).flatten(1), *layer("fc1")))
    return F.linear(z, *layer("fc2"))[:, 0]


@pytest.mark.parametrize(
    ("name", "deeper", "nu"),
    [
        ("reg_smoothed_icnn_ip_BL-PD.pt", False, NU),
        ("reg_icnn_ct.pt", False, 0.0),
        ("reg_icnn_ct_deep.pt", True, 0.0),
    ],
)
def test_values_are_the_authors_up_to_the_constant(tmp_path, name, deeper, nu):
    state = state_dict(deeper)
    torch.save(state, tmp_path / name)
    network = cl.load(tmp_path / name, dtype=torch.float64)
    network.check_convexity()
    x = torch.rand(3, 1, SIZE, SIZE)
    torch.testing.assert_close(network(x) + state["icnn.fc2.bias"], forward(state, x, nu))
    assert cl.load(str(tmp_path / name)).output.dtype is torch.float64
    torch.save({key: tensor.float() for key, tensor in state.items()}, tmp_path / name)
    assert cl.load(str(tmp_path / name)).output.dtype is torch.float32


class Trap:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return (print, ("executed",))


def without(name):
    return {key: value for key, value in state_dict().items() if key != name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (without("icnn.fc2.weight"), "not a regularizer of a known format"),
        ({**state_dict(), "icnn.extra": torch.ones(1)}, "unexpected are extra"),
        ({**state_dict(), "icnn.fc1.weight": torch.ones(HIDDEN, 7)}, "do not fit together"),
        ({**state_dict(), "icnn.wx.bias": torch.full((CHANNELS,), torch.nan)}, "not finite"),
        ({**state_dict(), "icnn.fc1.weight": torch.ones(())}, "fc1.weight has the shape"),
        ({**state_dict(), "icnn.wx.weight": torch.ones(0, 1, 5, 5)}, "wx.weight has the shape"),
        ({**state_dict(), "icnn.fc1.weight": torch.ones(1).expand(10**6, 10**6)}, "has fewer"),
        ([1, 2], "does not hold named tensors"),
        ({"icnn.wx.weight": torch.ones(1, dtype=torch.int64)}, "does not hold named tensors"),
        (Trap(), "not a file of weights alone"),
    ],
)
def test_other_files_are_refused_by_name(tmp_path, capsys, content, message):
    path = tmp_path / "weights.pt"
    torch.save(content, path)
    with pytest.raises(ValueError, match=message) as refused:
        cl.load(path)
    assert str(path) in str(refused.value)
    assert "weights_only" not in str(refused.value)  # torch's advice to load it all the same
    assert "executed" not in capsys.readouterr().out


def test_files_that_torch_cannot_read(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        cl.load(tmp_path / "absent.pt")
    for data in (b"", b"a", pickle.dumps(Trap(), protocol=2)):
        (tmp_path / "other.pt").write_bytes(data)
        with pytest.raises(ValueError, match="not a file of weights alone"):
            cl.load(tmp_path / "other.pt")
