"""Files of a model that were damaged, changed or exchanged: each is refused, by name."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import pytest
import safetensors.torch
import torch
from model_files import save_toy

import convexlift as cl


@pytest.fixture
def saved(tmp_path):
    """A network and the path of its two files."""
    return save_toy(tmp_path)


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


def truncate(path):
    file = path.with_suffix(".safetensors")
    file.write_bytes(file.read_bytes()[:-9])


def change_a_byte(path):
    data = bytearray(path.with_suffix(".safetensors").read_bytes())
    data[-3] ^= 1
    path.with_suffix(".safetensors").write_bytes(data)


def put_a_pickle(path):
    path.with_suffix(".safetensors").write_bytes(pickle.dumps({"output": [1.0]}))


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
    "changed byte": (change_a_byte, r"One of the two was damaged, changed or copied alone"),
    "changed hash": (field("sha256", "0" * 64), r"its SHA-256 is \w{12}..., not 000000000000"),
    "hash no text": (field("sha256", 3), r"toy\.json: model\.sha256 must be a string, got 3"),
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
        r"layers\.0\.bias is float64 of shape \(2,\), but in its architecture .*\(3,\)",
    ),
    "one dtype": (tensor("output", torch.Tensor.float), "one precision .* are float32, float64"),
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
        "the tensor extra is not part of its architecture",
    ),
    "other layouts": (
        lambda path: edit_json(path, lambda c: c["tensors"]["output"].update(shape=[9])),
        r"the tensor output is float64 of shape \(4,\), but in its description .*\(9,\)",
    ),
    "activation": (activation("Swish"), r"toy\.json: network\.layers\[0\].*'Swish' is unknown"),
    "later version": (field("version", 2), r"toy\.json: the format has version 2, but .* reads 1"),
    "other format": (field("format", "x"), r"not a model: it does not say"),
    "garbage": (text("{not json"), r"toy\.json: not valid JSON \(Expecting"),
    "a list": (text("[]"), r"toy\.json: not a model"),
    "deep": (text("[" * 100_000), r"toy\.json: not valid JSON"),
    "NaN in JSON": (text('{"format": NaN}'), r"NaN is not a number in JSON"),
    "unknown field": (field("code", "x"), r"toy\.json: model has no field code"),
    "missing field": (drop_field, r"toy\.json: model lacks the field tensors"),
    "card": (field("card", {"name": 3}), r"toy\.json: card\.name must be a string, got 3"),
    "a pickle": (put_a_pickle, r"is not the file that toy\.json describes"),
    "a torch file": (put_a_torch_file_with_its_hash, "not a readable safetensors file"),
}


V = "layers.1.previous.weight"
NO_SCALE = r"toy\.safetensors: the tensor {}:scale must be nonnegative and finite"
NO_CODES = r"toy\.safetensors: the tensor {}:scale does not fit any 8-bit tensor beside it"


def without(name):
    return lambda path: retensor(path, lambda tensors: tensors.pop(name))


def added(name, content):
    return lambda path: retensor(path, lambda tensors: tensors.update({name: content}))


EIGHT_BITS = {
    **{
        f"scale {number} of {name}": (value(f"{name}:scale", 1, number), NO_SCALE.format(name))
        for name in (V, W)
        for number in (torch.nan, torch.inf, -torch.inf, -1e-3)
    },
    "all scales negative": (tensor(f"{W}:scale", torch.neg), NO_SCALE.format(W)),
    "short scales": (tensor(f"{V}:scale", lambda t: t[:-1].clone()), NO_CODES.format(V)),
    "one scale": (tensor(f"{V}:scale", lambda t: t[0].clone()), NO_CODES.format(V)),
    "scales of pixels": (tensor(f"{V}:scale", lambda t: t[:, None].clone()), NO_CODES.format(V)),
    "no codes": (without(V), NO_CODES.format(V)),
    "codes are numbers": (tensor(V, torch.Tensor.float), NO_CODES.format(V)),
    "no scales": (without(f"{V}:scale"), rf"the tensor {V} is int8 .* architecture float32"),
    "scale of nothing": (added("x:scale", torch.ones(3)), NO_CODES.format("x")),
    "scale of a scale": (added(f"{V}:scale:scale", torch.ones(32)), NO_CODES.format(f"{V}:scale")),
    "negative code": (value(W, (0, 0, 0, 0), -1), r"toy\.safetensors: layer 2, map .* nonnegative"),
    "too large": (value(f"{V}:scale", 0, 3e38), rf"{V} is -?inf at \(0, "),
    "integer scales": (tensor(f"{V}:scale", torch.Tensor.char), rf"{V} is int8 .*float32"),
    "scales of another precision": (tensor(f"{V}:scale", torch.Tensor.double), "float32, float64"),
    "scalar codes": (
        lambda path: retensor(
            path, lambda ts: ts.update({V: ts[V][0, 0, 0, 0], f"{V}:scale": ts[f"{V}:scale"][0]})
        ),
        NO_CODES.format(V),
    ),
}


@pytest.mark.parametrize("problem", EIGHT_BITS)
def test_a_damaged_8_bit_file_is_refused_by_name(problem, tmp_path):
    cl.save(cl.networks.convolutional(kernel=7).float(), tmp_path / "toy", eight_bit=True)
    damage, message = EIGHT_BITS[problem]
    cl.load(tmp_path / "toy")
    damage(tmp_path / "toy")
    with pytest.raises(ValueError, match=message):
        cl.load(tmp_path / "toy")


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
