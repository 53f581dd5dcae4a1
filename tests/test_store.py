"""Networks in files: what was saved comes back, and nothing else is let in."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from zoo import ARCHITECTURES, FIRST_LAYER_ONLY, MONOTONE, SIZE, network

import convexlift as cl
from convexlift.models import files, store
from convexlift.models.describe import describe
from convexlift.networks import Convolution

ALL = {**MONOTONE, **FIRST_LAYER_ONLY}
CARD = cl.ModelCard(name="toy", summary="A toy.", task="denoising", weight=0.5)


@pytest.fixture
def saved(tmp_path):
    """A network and the path of its two files."""
    net = network("skips", cl.LeakyReLU(0.2))
    cl.save(net, tmp_path / "toy", CARD)
    return net, tmp_path / "toy"


def same(left: cl.InputConvexNetwork, right: cl.InputConvexNetwork) -> bool:
    one, other = left.state_dict(), right.state_dict()
    return (
        list(one) == list(other)
        and all(torch.equal(one[n], other[n]) and one[n].dtype is other[n].dtype for n in one)
        and describe(left) == describe(right)
    )


def edit_json(path: Path, edit) -> None:
    file = path.with_suffix(".json")
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def rewrite(path: Path, data: bytes, **fields) -> None:
    """Put other weights there, with the hash that belongs to them."""
    path.with_suffix(".safetensors").write_bytes(data)
    edit_json(path, lambda c: c.update(sha256=hashlib.sha256(data).hexdigest(), **fields))


def retensor(path: Path, change) -> None:
    """Change the tensors, and all that the description says of them."""
    tensors = safetensors.torch.load_file(path.with_suffix(".safetensors"))
    change(tensors)
    layouts = {
        name: {"shape": list(t.shape), "dtype": str(t.dtype).removeprefix("torch.")}
        for name, t in tensors.items()
    }
    rewrite(path, safetensors.torch.save(tensors), tensors=layouts)


@pytest.mark.parametrize("activation", ALL)
@pytest.mark.parametrize("architecture", [*ARCHITECTURES, "residual last"])
def test_what_was_saved_comes_back(architecture, activation, tmp_path):
    net = network(architecture, ALL[activation])
    cl.save(net, tmp_path / "net")
    again = cl.load(tmp_path / "net")
    assert same(net, again)
    x = torch.randn(2, 1, SIZE, SIZE)
    assert torch.equal(net(x), again(x))
    assert again.card is None


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
    net = network("skips", cl.Softplus(3.0)).float()
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


def test_half_precision_refuses_what_overflows(tmp_path):
    net = network("plain", cl.ReLU())
    with torch.no_grad():
        net.output[2] = 7e4
    with pytest.raises(ValueError, match=r"output is 70000 at \(2,\), too large for half .*65504"):
        cl.save(net, tmp_path / "net", half=True)
    assert not list(tmp_path.iterdir())
    with torch.no_grad():
        net.output[2] = 1e300
    cl.save(net, tmp_path / "net")
    with pytest.raises(ValueError, match=r"output is 1e\+300 at \(2,\), too large for float32"):
        cl.load(tmp_path / "net", dtype=torch.float32)


def test_a_solution_with_a_loaded_network(saved):
    net, path = saved
    y = cl.SquaredL2(torch.rand(1, 1, SIZE, SIZE))
    stop = cl.StopWhen(max_iterations=20)
    solutions = [
        cl.solve(cl.VariationalProblem(fidelity=y, regularizer=n, weight=0.1), stop=stop)
        for n in (net, cl.load(path))
    ]
    assert torch.equal(solutions[0].x, solutions[1].x)


# What is wrong with the files, one by one.


def truncate(path):
    file = path.with_suffix(".safetensors")
    file.write_bytes(file.read_bytes()[:-9])


def truncate_with_its_hash(path):
    rewrite(path, path.with_suffix(".safetensors").read_bytes()[:-9])


def change_a_byte(path):
    data = bytearray(path.with_suffix(".safetensors").read_bytes())
    data[-3] ^= 1
    path.with_suffix(".safetensors").write_bytes(data)


def put_a_pickle(path):
    path.with_suffix(".safetensors").write_bytes(pickle.dumps({"output": [1.0]}))


def put_a_pickle_with_its_hash(path):
    rewrite(path, pickle.dumps({"output": [1.0]}))


def put_a_torch_file_with_its_hash(path):
    torch.save({"output": torch.ones(4)}, path.with_suffix(".pt"))
    rewrite(path, path.with_suffix(".pt").read_bytes())


def make_a_folder(path):
    path.with_suffix(".json").unlink()
    path.with_suffix(".json").mkdir()


def value(name, index, number):
    def change(tensors):
        tensors[name][index] = number

    return lambda path: retensor(path, change)


def tensor(name, function):
    def change(tensors):
        tensors[name] = function(tensors[name])

    return lambda path: retensor(path, change)


def field(name, content):
    return lambda path: edit_json(path, lambda c: c.update({name: content}))


def activation(name):
    def change(content):
        content["architecture"]["layers"][0]["activation"] = {name: {}}

    return lambda path: edit_json(path, change)


def text(content):
    return lambda path: path.with_suffix(".json").write_text(content)


def drop_field(path):
    edit_json(path, lambda c: c.pop("tensors"))


W = "layers.1.previous.weight"
PROBLEMS = {
    "truncated": (truncate, r"toy\.safetensors is not the file that toy\.json describes"),
    "truncated, hash": (truncate_with_its_hash, r"toy\.safetensors: this is no safetensors file"),
    "changed byte": (change_a_byte, r"One of the two was damaged, changed or copied alone"),
    "changed hash": (field("sha256", "0" * 64), r"its SHA-256 is \w{12}..., not 000000000000"),
    "hash no text": (field("sha256", 3), r"toy\.json: model\.sha256 must be a text, got 3"),
    "no weights": (
        lambda path: path.with_suffix(".safetensors").unlink(),
        r"toy\.safetensors is missing beside toy\.json; a model is a pair",
    ),
    "no sheet": (
        lambda path: path.with_suffix(".json").unlink(),
        r"toy\.json is missing beside toy\.safetensors; a model is a pair",
    ),
    "a folder": (make_a_folder, r"toy\.json is missing beside toy\.safetensors"),
    "negative": (value(W, (0, 0, 0, 0), -0.25), r"toy\.safetensors: layer 2, map .* -0\.25"),
    "negative output": (value("output", 1, -1e-30), "output weights contain -1e-30"),
    "nan": (value(W, (0, 1, 2, 0), torch.nan), r"previous\.weight is nan at \(0, 1, 2, 0\)"),
    "nan in V": (value("layers.0.skip.weight", (0,), torch.nan), r"skip\.weight is nan at \(0, 0"),
    "infinite": (value("layers.0.bias", 2, torch.inf), r"layers\.0\.bias is inf at \(2,\)"),
    "shape": (
        tensor("layers.0.bias", lambda t: t[:2].clone()),
        r"layers\.0\.bias is float64 of shape \(2,\), in its architecture .*\(3,\)",
    ),
    "one dtype": (
        tensor("output", torch.Tensor.float),
        "one precision .* are float32, float64",
    ),
    "integers": (tensor("output", torch.Tensor.long), r"the tensor output is int64 .*float64"),
    "dtype of all": (
        lambda path: retensor(path, lambda ts: ts.update({n: t.bfloat16() for n, t in ts.items()})),
        "one precision out of float16, float32, float64, but are bfloat16",
    ),
    "missing tensor": (
        lambda path: retensor(path, lambda ts: ts.pop("output")),
        r"toy\.safetensors: the tensor output of its architecture is missing",
    ),
    "further tensor": (
        lambda path: retensor(path, lambda ts: ts.update(extra=torch.ones(2))),
        "the tensor extra is none of its architecture",
    ),
    "other layouts": (
        lambda path: edit_json(path, lambda c: c["tensors"]["output"].update(shape=[9])),
        r"the tensor output is float64 of shape \(4,\), in its description .*\(9,\)",
    ),
    "layout no list": (
        lambda path: edit_json(path, lambda c: c["tensors"]["output"].update(shape="(4,)")),
        r"toy\.json: model\.tensors\.output\.shape must be a list",
    ),
    "other sizes": (
        lambda path: edit_json(path, lambda c: c["architecture"]["layers"][0].update(channels=9)),
        r"toy\.json: network: layer 1 has channels=9",
    ),
    "activation": (activation("Swish"), r"toy\.json: network\.layers\[0\].*'Swish' is not known"),
    "later version": (field("version", 2), r"toy\.json: the format has version 2, but .* reads 1"),
    "no version": (field("version", None), r"the format has version None"),
    "other format": (field("format", "x"), r"this is no model: it does not say"),
    "garbage": (text("{not json"), r"toy\.json: this is not valid JSON \(Expecting"),
    "binary": (
        lambda path: path.with_suffix(".json").write_bytes(b"\xff\xfe\x00"),
        r"toy\.json: this is not valid JSON",
    ),
    "empty": (text(""), r"toy\.json: this is not valid JSON"),
    "a list": (text("[]"), r"toy\.json: this is no model"),
    "deep": (text("[" * 100_000), r"toy\.json: this is not valid JSON"),
    "NaN in JSON": (text('{"format": NaN}'), r"NaN is no number in JSON"),
    "unknown field": (field("code", "x"), r"toy\.json: model has no field code"),
    "missing field": (drop_field, r"toy\.json: model lacks the field tensors"),
    "card": (field("card", {"name": 3}), r"toy\.json: card\.name must be a text, got 3"),
    "a pickle": (put_a_pickle, r"is not the file that toy\.json describes"),
    "a pickle, hash": (put_a_pickle_with_its_hash, "this is no safetensors file"),
    "a torch file": (put_a_torch_file_with_its_hash, "this is no safetensors file"),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_damaged_pair_is_refused_by_name(problem, saved, monkeypatch):
    _, path = saved
    damage, message = PROBLEMS[problem]
    damage(path)

    def never(*_, **__):
        raise AssertionError("unpickling")

    for module, name in ((pickle, "load"), (pickle, "loads"), (torch, "load")):
        monkeypatch.setattr(module, name, never)
    with pytest.raises(ValueError, match=message):
        cl.load(path)


def test_loading_never_unpickles(saved, monkeypatch):
    net, path = saved

    def never(*_, **__):
        raise AssertionError("unpickling")

    for module, name in (
        *((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler")),
        *((torch, "load"), (torch.serialization, "load")),
    ):
        monkeypatch.setattr(module, name, never)
    assert same(net, cl.load(path))


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
    with pytest.raises(ValueError, match=r"refusing to save: layers\.0\.bias is nan at \(1,\)"):
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
    with pytest.raises(ValueError, match="the tensor mean is none of its architecture"):
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
    with pytest.raises(ValueError, match="names no file"):
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


# Names and paths.


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder in place of the package's, with two models; another one to work in."""
    folder = tmp_path / "weights"
    for name, architecture in (("small", "plain"), ("large", "deep")):
        card = cl.ModelCard(name=name, summary="A toy.", task="denoising", weight=1)
        cl.save(network(architecture, cl.ReLU()), folder / name, card)
    (folder / "README.md").write_text("")
    (folder / "lonely.json").write_text("")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(files, "SHIPPED", folder)


@pytest.mark.usefixtures("shipped")
def test_shipped_models_are_found_by_name():
    assert cl.models.names() == ("large", "small")
    assert same(cl.load("small"), network("plain", cl.ReLU()))
    assert cl.load("large").card.name == cl.models.card("large").name == "large"
    with pytest.raises(ValueError, match="no model 'medium'; the models shipped are large, small"):
        cl.load("medium")
    Path("small").mkdir()  # a folder of that name is not in the way
    assert same(cl.load("small"), network("plain", cl.ReLU()))


@pytest.mark.usefixtures("shipped")
def test_a_path_wins_where_it_is_one():
    own = network("residual", cl.ReLU())
    cl.save(own, "small")
    assert same(cl.load("small"), own)
    assert same(cl.load("small.json"), own)
    assert same(cl.load("./small"), own)
    assert store.shipped_sheets()["small"].architecture == describe(network("plain", cl.ReLU()))
    for path in ("./large", "large.safetensors", "large.json", Path("large")):
        with pytest.raises(ValueError, match=r"neither large.safetensors nor large.json exists"):
            cl.load(path)


def test_what_is_no_model(tmp_path, saved, monkeypatch):
    with pytest.raises(ValueError, match=r"is a folder; name a model in it \(there: toy\)"):
        cl.load(tmp_path)
    torch.save({}, tmp_path / "old.pt")
    with pytest.raises(ValueError, match=r"old\.pt is no model: a model is a pair of files"):
        cl.load(tmp_path / "old.pt")
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "nowhere")
    assert cl.models.names() == ()
    with pytest.raises(ValueError, match="no model 'medium': none are shipped"):
        cl.load("medium")
    with pytest.raises(ValueError, match="names no file"):
        cl.load("")


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


def test_every_model_in_the_package_loads():
    """Names that can be typed, cards that say what they must."""
    for name in cl.models.names():
        net = cl.load(name)
        assert "." not in name
        assert net.card.name == name
        for field_name in ("data", "license", "command", "weight_choice", "not_for", "results"):
            assert getattr(net.card, field_name), f"{name}: {field_name}"
