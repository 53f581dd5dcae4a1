"""Networks in files: what was saved comes back, and what cannot be saved is refused."""

from __future__ import annotations

import copy
import os
from pathlib import Path

import pytest
import torch
from model_files import CARD, same, save_toy
from zoo import network

import convexlift as cl
from convexlift import networks
from convexlift.networks import Convolution


@pytest.fixture
def saved(tmp_path):
    """A network and the path of its two files."""
    return save_toy(tmp_path)


def test_the_card_comes_back_and_the_state_dict_is_free_of_it(saved):
    net, path = saved
    again = cl.load(path)
    assert again.card == CARD == cl.models.card(path)
    assert again.card.weight == 0.5
    assert net.card is None
    assert set(again.state_dict()) == set(net.state_dict())
    assert copy.deepcopy(again).card == CARD
    cl.save(again, path)
    assert cl.load(path).card is None  # only what is given is written
    with pytest.raises(ValueError, match=r"has no card; save it with card=ModelCard"):
        cl.models.card(path)


@pytest.mark.parametrize("ending", ["", ".safetensors", ".json"])
def test_paths_with_and_without_endings(ending, tmp_path):
    net = network("plain", cl.ReLU())
    target = tmp_path / "folder" / "v1.5"
    assert cl.save(net, f"{target}{ending}") == Path(f"{target}.safetensors")
    assert {f.name for f in target.parent.iterdir()} == {"v1.5.safetensors", "v1.5.json"}
    assert same(net, cl.load(f"{target}{ending}"))


def test_a_saved_network_is_the_same_file_again(saved, tmp_path):
    _, path = saved
    cl.save(cl.load(path), tmp_path / "again", CARD)
    for ending in (".safetensors", ".json"):
        assert path.with_suffix(ending).read_bytes() == (tmp_path / f"again{ending}").read_bytes()


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_precisions(precision, tmp_path):
    net = network("deep", cl.ReLU()).to(precision)
    cl.save(net, tmp_path / "net")
    for default in (torch.float32, torch.float64):
        torch.set_default_dtype(default)
        assert same(net, cl.load(tmp_path / "net"))
    assert same(net.double(), cl.load(tmp_path / "net", dtype=torch.float64))
    assert cl.load(tmp_path / "net", dtype=torch.float32).output.dtype is torch.float32


def test_loading_leaves_the_random_numbers_alone(saved):
    net, path = saved
    before = torch.get_rng_state()
    cl.load(path)
    cl.save(net, path)
    assert torch.equal(torch.get_rng_state(), before)


def test_half_precision(tmp_path):
    net = network("skips", cl.SmoothedLeakyReLU(slope=0.2, smoothing=0.3)).float()
    with torch.no_grad():
        net.output[0] = 1e-9  # becomes zero, not negative
    cl.save(net, tmp_path / "half", half=True)
    cl.save(net, tmp_path / "single")
    again = cl.load(tmp_path / "half")
    again.check_convexity()
    for name, value in net.state_dict().items():
        stored = again.state_dict()[name]
        assert stored.dtype is torch.float32
        assert torch.equal(stored, value.half().float())
    cl.save(again, tmp_path / "twice", half=True)
    assert same(again, cl.load(tmp_path / "twice"))
    sizes = {n: (tmp_path / f"{n}.safetensors").stat().st_size for n in ("half", "single")}
    assert sizes["half"] < 0.75 * sizes["single"]
    assert same(again.double(), cl.load(tmp_path / "half", dtype=torch.float64))


def test_eight_bits(tmp_path):
    """Weights move by half a code at most, zeros stay zeros, and a second time nothing moves."""
    net = networks.baseline(32, channels=16, hidden=256).float()
    with torch.no_grad():
        net.layers[1].previous.project_()
        net.layers[0].skip.weight[0] = 0.0  # a row without a scale
    full = cl.save(net, tmp_path / "full")
    small = cl.save(net, tmp_path / "small", eight_bit=True)
    large = sum(t.numel() for t in net.state_dict().values() if t.ndim > 1)
    assert small.stat().st_size < full.stat().st_size - 2.5 * large
    again = cl.load(tmp_path / "small")
    for name, value in net.state_dict().items():
        stored = again.state_dict()[name]
        step = value.flatten(1).abs().amax(1) / 127 if value.ndim > 1 else torch.zeros(1)
        moved = (stored - value).flatten(1).abs().amax(1) if value.ndim > 1 else stored - value
        assert stored.dtype is torch.float32
        assert bool((moved <= 0.5001 * step).all())
        assert bool((stored[value == 0] == 0).all())
    cl.save(again, tmp_path / "twice", eight_bit=True)
    assert (tmp_path / "twice.safetensors").read_bytes() == small.read_bytes()


def test_rows_that_are_alike_are_stored_once(tmp_path):
    net = cl.networks.baseline(image_size=64, channels=16, hidden=64)
    dense = net.layers[1].previous.maps[1].weight
    with torch.no_grad():
        dense.copy_(dense[:1] * torch.linspace(0.5, 2.0, 64)[:, None])
    file = cl.save(net, tmp_path / "net", eight_bit=True)
    assert file.stat().st_size < dense.numel() / 2
    again = cl.load(tmp_path / "net").layers[1].previous.maps[1].weight
    assert again.shape == dense.shape
    assert bool(((again - dense).abs() <= dense.amax(1, keepdim=True) / 253).all())


def test_eight_bits_do_not_touch_the_filters_on_the_image(tmp_path):
    """Rounded, filters of mean zero would see brightness: flat parts of pictures became darker."""
    net = networks.adaptive(in_channels=3, channels=48, widths=(16,)).float()
    with torch.no_grad():
        filters = net.layers[0].skip.weight
        filters -= filters.mean((2, 3), keepdim=True)
    cl.save(net, tmp_path / "net", eight_bit=True)
    stored = cl.load(tmp_path / "net")
    assert torch.equal(stored.layers[0].skip.weight, filters)
    assert not torch.equal(stored.guide.first.weight, net.guide.first.weight)


@pytest.mark.parametrize("size", [1.0, 1e-2, 3e-3, 1e-3])
def test_small_weights_in_eight_bits_and_half_precision(size, tmp_path):
    """Scales below 6e-5 have fewer digits in half precision; their codes must fit them."""
    net = networks.convolutional(kernel=7).float()
    with torch.no_grad():
        net.layers[0].skip.weight.uniform_(-size, size)
    cl.save(net, tmp_path / "net", half=True, eight_bit=True)
    moved = cl.load(tmp_path / "net").layers[0].skip.weight - net.layers[0].skip.weight
    assert float(moved.detach().abs().max()) < 0.006 * size


def test_half_precision_refuses_what_overflows(tmp_path):
    net = network("plain", cl.ReLU())
    with torch.no_grad():
        net.output[2] = 7e4
    with pytest.raises(ValueError, match=r"is 70000 at \(2,\), too large for float16 .*65504"):
        cl.save(net, tmp_path / "net", half=True)
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        net.output[2] = 3e39
    cl.save(net, tmp_path / "net")
    with pytest.raises(ValueError, match=r"output is 3e\+39 at \(2,\), too large for float32"):
        cl.load(tmp_path / "net", dtype=torch.float32)


def test_what_cannot_be_asked_for(saved):
    _, path = saved
    with pytest.raises(ValueError, match=r"torch\.float32 or torch\.float64, got torch\.float16"):
        cl.load(path, dtype=torch.float16)
    with pytest.raises(ValueError, match="device 'abacus' cannot be used"):
        cl.load(path, device="abacus")
    assert cl.load(path, device="cpu").output.device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match=r"device 'cuda' cannot be used .* try 'cpu'"):
            cl.load(path, device="cuda")


# Saving: refusals, and interruptions.


def test_what_is_not_convex_or_not_finite_is_not_saved(tmp_path):
    net = network("plain", cl.ReLU())
    with torch.no_grad():
        net.output[0] = -1
    with pytest.raises(ValueError, match="output weights contain -1"):
        cl.save(net, tmp_path / "net")
    with torch.no_grad():
        net.output[0] = 1
        net.layers[0].bias[1] = torch.nan
    with pytest.raises(ValueError, match=r"0\.bias is nan at \(1,\); weights must be finite"):
        cl.save(net, tmp_path / "net")
    assert not list(tmp_path.iterdir())


def test_what_a_file_cannot_say_is_not_saved(tmp_path):
    shared = Convolution(1, 3, 3)
    layers = [
        cl.ConvexLayer(cl.ReLU(), channels=3, skip=shared),
        cl.ConvexLayer(
            *(cl.ReLU(),),
            channels=3,
            skip=shared,
            previous=Convolution(3, 3, 3, nonnegative=True),
        ),
    ]
    with pytest.raises(ValueError, match=r"layers\.0\.skip\.weight and layers\.1\.skip\.weight"):
        cl.save(cl.InputConvexNetwork(layers), tmp_path / "net")
    mixed = network("plain", cl.ReLU())
    mixed.layers[0].float()
    with pytest.raises(ValueError, match=r"one precision .*float32, float64; convert the network"):
        cl.save(mixed, tmp_path / "net")
    extra = network("plain", cl.ReLU())
    extra.register_buffer("mean", torch.zeros(2))
    with pytest.raises(ValueError, match="the tensor mean is not part of its architecture"):
        cl.save(extra, tmp_path / "net")
    with pytest.raises(ValueError, match="card must be a ModelCard, got a dict"):
        cl.save(network("plain", cl.ReLU()), tmp_path / "net", {"name": "x"})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["", "folder", "taken.json", "."])
def test_a_folder_is_no_file_to_save_to(name, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken.json").mkdir()
    with pytest.raises(ValueError, match="is a folder; name a file in it"):
        cl.save(network("plain", cl.ReLU()), tmp_path / name)
    with pytest.raises(ValueError, match="is not a file name"):
        cl.save(network("plain", cl.ReLU()), tmp_path / ".json")


@pytest.mark.parametrize("method", ["write_bytes", "write_text"])
def test_a_failed_save_leaves_the_old_pair(method, saved, monkeypatch):
    net, path = saved
    other = network("plain", cl.ReLU())

    def fail(self, *_, **__):
        self.touch()
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, method, fail)
        with pytest.raises(OSError, match="disk full"):
            cl.save(other, path)
    assert same(net, cl.load(path))
    assert {f.name for f in path.parent.iterdir()} == {"toy.safetensors", "toy.json"}


def test_a_save_cut_between_the_two_files_is_noticed(saved, monkeypatch):
    _, path = saved
    replace = os.replace

    def cut(source, target):
        if str(target).endswith(".json"):
            raise KeyboardInterrupt
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", cut)
        with pytest.raises(KeyboardInterrupt):
            cl.save(network("plain", cl.ReLU()), path)
    with pytest.raises(ValueError, match=r"its writing was interrupted; save or copy both again"):
        cl.load(path)
    cl.save(network("plain", cl.ReLU()), path)
    cl.load(path)
