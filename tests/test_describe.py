"""Architectures as JSON and back, and everything that is not one."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass

import pytest
import torch

import convexlift as cl
from convexlift.models.store import build, describe
from convexlift.networks import Convolution


def test_a_description_reads_as_documented():
    convolution = {
        "in_channels": 1, "out_channels": 4, "kernel_size": 3, "stride": 1, "padding": "zero",
    }  # fmt: skip
    assert describe(cl.networks.convolutional(channels=4, kernel=3))["layers"][0] == {
        "activation": {"LeakyReLU": {"slope": 0.2}}, "channels": 4,
        "skip": {"Convolution": convolution}, "previous": None, "links": {}, "bias": True,
        "residual": False,
    }  # fmt: skip


@dataclass(frozen=True)
class Unnamed(cl.Abs):
    """An activation with another one inside, and with a tuple."""

    inner: cl.Activation
    ends: tuple[float, float] = (0.0, 1.0)

    @property
    def slopes(self):
        return self.ends


def with_activation(h: cl.Activation) -> cl.InputConvexNetwork:
    return cl.InputConvexNetwork([cl.ConvexLayer(h, channels=2, skip=Convolution(1, 2, 3))])


def test_a_class_keyword_registers_a_new_activation(registry):
    with pytest.raises(
        ValueError, match=r"layers\[0\]\.activation: Unnamed is not registered for files"
    ):
        describe(with_activation(Unnamed(Unnamed(cl.Huber(0.3)))))

    @dataclass(frozen=True)
    class Nested(Unnamed, name="Nested"):
        """The same, with a name."""

    net = with_activation(Nested(Nested(cl.Huber(0.3))))
    description = json.loads(json.dumps(describe(net)))
    assert build(description).layers[0].activation == Nested(Nested(cl.Huber(0.3)))
    description["layers"][0]["activation"]["Nested"]["inner"] = {"Convolution": {}}
    with pytest.raises(ValueError, match=r"Nested\.inner: 'Convolution' is unknown; known are A"):
        build(description)


class Quiet(cl.InputConvexNetwork):
    """Only its constructor differs."""

    def __init__(self, channels):
        convolution = Convolution(1, channels, 3)
        super().__init__([cl.ConvexLayer(cl.Abs(), channels=channels, skip=convolution)])


class Loud(Quiet):
    """It does something else."""

    def forward(self, x):
        return 2 * super().forward(x)


def test_a_subclass_is_a_plain_network_or_refused():
    net = Quiet(3)
    again = build(describe(net))
    assert type(again) is cl.InputConvexNetwork
    again.load_state_dict(net.state_dict())
    x = torch.rand(1, 1, 5, 5)
    assert torch.equal(again(x), net(x))
    with pytest.raises(ValueError, match="Loud overrides forward of InputConvexNetwork"):
        describe(Loud(3))
    with pytest.raises(ValueError, match="only an InputConvexNetwork"):
        describe(torch.nn.Linear(2, 2))
    layer = OtherLayer(cl.ReLU(), channels=3, skip=Convolution(1, 3, 3))
    with pytest.raises(ValueError, match=r"layers\[0\]: OtherLayer is not registered for files"):
        describe(cl.InputConvexNetwork([layer]))


class OtherLayer(cl.ConvexLayer):
    """Not the layer that descriptions mean."""


def put(description, path, value):
    *way, last = path
    for key in way:
        description = description[key]
    description[last] = value


ACTIVATION = ("layers", 0, "activation")
SKIP = ("layers", 0, "skip")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (ACTIVATION, {"Swish": {}}, r"layers\[0\].activation: 'Swish' is unknown; known are Abs"),
        (ACTIVATION, {"Swish": {}}, "If it is a class of your own, import its module first"),
        (ACTIVATION, {"Convolution": {}}, "'Convolution' is unknown; known are Abs, GroupNorm"),
        (ACTIVATION, "ReLU", r'must be written as \{"NAME": \{...\}\} with one of the names Abs'),
        (ACTIVATION, {"ReLU": {}, "Abs": {}}, "must be written as"),
        (ACTIVATION, {"ReLU": {"slope": 1}}, r"activation\.ReLU has no field slope; its fields"),
        (ACTIVATION, {"LeakyReLU": {"slope": 2}}, r"LeakyReLU: LeakyReLU needs 0 <= slope < 1"),
        (ACTIVATION, {"LeakyReLU": {"slope": "a"}}, r"slope must be a finite number, got 'a'"),
        (ACTIVATION, {"LeakyReLU": {"slope": True}}, r"slope must be a finite number, got True"),
        (ACTIVATION, {"LeakyReLU": [0.2]}, r"LeakyReLU must be an object with slope, got \[0.2\]"),
        (ACTIVATION, None, r"layers\[0\].activation must be written as"),
        (SKIP, {"Dense": {"in_features": 3}}, r"skip\.Dense lacks the field out_features"),
        (SKIP, {"Identity": {}}, "'Identity' is unknown; known are AveragePool, Chain"),
        (SKIP, {"ForwardDifferences": {"a": 1}}, "has no field a; its fields are none"),
        (SKIP, {"Chain": {"maps": []}}, r"skip\.Chain: a chain needs at least one map"),
        (SKIP, {"Chain": {"maps": [{"ReLU": {}}]}}, r"maps\[0\]: 'ReLU' is unknown"),
        (SKIP, {"AveragePool": {"size": 2.5}}, "size must be a whole number, got 2.5"),
        (SKIP, {"AveragePool": {"size": 0}}, "size must be at least 1, got 0"),
        (SKIP, None, "a layer needs a map"),
        ((*SKIP, "Convolution", "padding"), "mirror", "padding must be"),
        ((*SKIP, "Convolution", "kernel_size"), 4, "odd kernel_size, got 4"),
        ((*SKIP, "Convolution", "nonnegative"), True, "has no field nonnegative"),
        ((*SKIP, "Convolution", "in_channels"), 7, "a convolution with 7 input channels"),
        (("layers", 0, "bias"), 1, "bias must be true or false, got 1"),
        (("layers", 0, "channels"), 5, "layer 1 has channels=5, but its maps give"),
        (("layers", 1, "links"), {"a": {}}, "links must have integers as keys, got 'a'"),
        (("layers", 1, "links"), [], r"links must be an object, got \[\]"),
        (("layers", 1, "surprise"), 1, r"layers\[1\] has no field surprise; its fields are act"),
        (("layers",), [], "at least one layer"),
        (("layers",), {}, r"network\.layers must be a list"),
        (("image_size",), [8], "image_size must have 2 entries"),
        (("image_size",), "8 x 8", "image_size must be a list, got '8 x 8'"),
        (("in_channels",), None, "in_channels must be a whole number, got None"),
        (("concave",), "quadratic", "it is a weakly convex network, which versions from 0.2 on do"),
        (("seed",), 1, "network has no field seed; its fields are layers, in_channels"),
    ],
)
def test_what_is_wrong_in_a_description_is_named(path, value, message):
    description = copy.deepcopy(describe(cl.networks.convolutional(channels=3, kernel=3)))
    put(description, path, value)
    with pytest.raises(ValueError, match=message):
        build(description)


def test_nesting_without_end_is_refused():
    deep: dict[str, object] = {"AveragePool": {"size": 1}}
    for _ in range(2000):
        deep = {"Chain": {"maps": [deep]}}
    description = describe(cl.networks.convolutional(channels=3, kernel=3))
    put(description, SKIP, deep)
    with pytest.raises(ValueError, match="nested too deeply"):
        build(description)


@pytest.mark.parametrize("description", [None, [], "network", 3])
def test_no_description_at_all(description):
    with pytest.raises(ValueError, match="network must be an object with layers"):
        build(description)


def test_a_field_that_is_missing_takes_its_default():
    """So that files written before an argument existed can still be read."""
    description = describe(cl.networks.convolutional(channels=3, kernel=3))
    del description["layers"][0]["skip"]["Convolution"]["padding"]
    assert build(description).layers[0].skip.padding == "zero"
