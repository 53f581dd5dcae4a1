"""Proof files that were changed, claim too much, or mean harm are refused, with a reason."""

from __future__ import annotations

import copy
import math
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import parts
import proof_files
import pytest
import torch
import zoo
from forged_proofs import Forged, convolution

import convexlift as cl
from convexlift import proof_checker
from convexlift.proof_checker import ProofRejected, main, verify


@pytest.fixture(scope="module")
def proof(tmp_path_factory) -> tuple[dict, dict]:
    """Description and arrays of a proof with every kind of tensor."""
    torch.set_default_dtype(torch.float64)
    data, mask = zoo.fidelity("weighted L2", batch=2)[0], parts.seen((1, zoo.SIZE, zoo.SIZE))
    problem = cl.VariationalProblem(
        fidelity=cl.WeightedL2(data.y, data.weights + 0.1), operator=mask @ parts.blur(),
        regularizer=zoo.network("skips", cl.LeakyReLU(0.2)), weight=0.1, box=(0.0, 60.0),
    )  # fmt: skip
    solution = cl.solve(problem, stop=cl.StopWhen(gap=None, max_iterations=30))
    return proof_files.opened(solution.proof.save(tmp_path_factory.mktemp("a") / "a.proof"))


def refused(tmp_path, head, arrays) -> str:
    """The reason, after the name of the file."""
    path = proof_files.store(tmp_path / "wrong.proof", head, arrays)
    with pytest.raises(ProofRejected) as error:
        verify(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value).removeprefix(f"{path}: ")


def changed(value, path, new):
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


def leaves(value, path=()):
    """Every place in a JSON value."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*path, key))
    if path:
        yield path


def test_the_untouched_proof_is_confirmed(tmp_path, proof):
    (first, _) = verify(proof_files.store(tmp_path / "a.proof", *proof))
    assert first.made_by["convexlift"] == cl.__version__
    assert first.network_sha256 == proof[0]["network_sha256"]
    assert "\n" not in str(first)
    assert repr(first.lower_bound) in str(first)
    assert "no image in the box is below" in str(first)


def test_every_changed_tensor_is_named(tmp_path, proof):
    head, arrays = proof
    for name in arrays:
        wrong = {n: a.copy() for n, a in arrays.items()}
        wrong[name].flat[-1] = np.nextafter(wrong[name].flat[-1], np.inf)
        reason = refused(tmp_path, head, wrong)
        assert reason == f"the tensor {name!r} was changed after the proof was written"
        single = {**arrays, name: arrays[name].astype(np.float32)}
        assert f"the tensor {name!r} was changed" in refused(tmp_path, head, single)
        without = {n: a for n, a in arrays.items() if n != name}
        assert repr(name) in refused(tmp_path, head, without)
        resealed = proof_files.complete(head, without)
        assert repr(name) in refused(tmp_path, resealed, without) or name == "x"


def test_every_changed_field_is_refused(tmp_path, proof):
    head, arrays = proof
    for path in leaves(head):
        reason = refused(tmp_path, changed(head, path, "something else"), arrays)
        if path[0] == "digest" or len(path) > 1 or path[0] == "network_sha256":
            assert "the description was changed" in reason


def test_fields_of_the_wrong_kind_are_refused_whatever_the_digest_says(tmp_path, proof):
    """Text, nothing, lists, huge, negative and missing values everywhere; never another error.

    Fields that repeat what tensors say, and options of parts that have none, are not read: the
    verdict is the same.
    """
    head, arrays = proof
    unread = ("in_channels", "in_features", "image_size", "links", "ReLU", "WeightedL2", "gap")
    before = verify(proof_files.store(tmp_path / "a.proof", head, arrays))
    for path in leaves({k: v for k, v in head.items() if k != "digest"}):
        for new in ("text", [], {}, {"ReLU": {}}, -1, 10**400, 1e300, True):
            if path[0] in ("made_by", "radius") or changed(head, path, new) == head:
                continue
            wrong = proof_files.sealed(changed(head, path, new))
            file = proof_files.store(tmp_path / "wrong.proof", wrong, arrays)
            try:
                assert verify(file) == before
                modest = (path[0], path[-1], new) == ("claims", "objective", 1e300)
                assert modest or {*path} & {*unread, "bias", "residual"}, (path, new)
            except ProofRejected as error:
                assert str(error).startswith(f"{file}: ")  # noqa: PT017


def test_claims_are_about_what_is_proved(tmp_path, proof):
    """Better ones are refused; worse ones are not, and the verdict has the checker's numbers."""
    head, arrays = proof
    before, claim = verify(proof_files.store(tmp_path / "a.proof", *proof)), head["claims"][1]
    J, bound = claim["objective"], claim["lower_bound"]
    for name, value in (
        ("objective", J * (1 - 1e-5)), ("objective", J * (1 - 1e-8)),
        ("lower_bound", bound + 1e-5 * J), ("lower_bound", bound + 2e-9 * J),
    ):  # fmt: skip
        wrong = proof_files.sealed(changed(head, ("claims", 1, name), value))
        assert refused(tmp_path, wrong, arrays).startswith(f"claims[1].{name} is")
    modest = changed(head, ("claims", 1), {**claim, "lower_bound": bound - 3, "gap": 100.0})
    file = proof_files.store(tmp_path / "b.proof", proof_files.sealed(modest), arrays)
    assert verify(file) == before


def test_what_makes_a_network_not_convex_is_named(tmp_path, proof):
    head, arrays = proof
    for name in arrays:
        if not name.startswith("network.") or name.endswith(("skip.weight", "bias")):
            continue
        wrong = {**arrays, name: arrays[name].copy()}
        wrong[name].flat[3] = -1e-30
        reason = refused(tmp_path, proof_files.complete(head, wrong), wrong)
        assert name.removeprefix("network.").split(".maps.")[0].removesuffix(".weight") in reason
        assert "negative" in reason


def nested(depth: int) -> dict:
    value: dict = {"AveragePool": {"size": 1}}
    for _ in range(depth):
        value = {"Chain": {"maps": [value]}}
    return value


def chain(part: dict, length: int) -> dict:
    return {"Chain": {"maps": [part] * length}}


LAYERS = ("problem", "network", "layers")


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ((*LAYERS, 1, "activation"), {"Abs": {}}, "layers.1.activation decreases, and reads more"),
        ((*LAYERS, 1, "previous"), {"ForwardDifferences": {}}, "layers.1.previous has negative"),
        ((*LAYERS, 0, "activation"), {"LeakyReLU": {"slope": 1.5}}, "slope is '1.5', not a number"),
        ((*LAYERS, 0, "activation"), {"LeakyReLU": {"slope": -0.1}}, "slope is '-0.1', not a"),
        ((*LAYERS, 0, "activation"), {"Huber": {"delta": 0.0}}, "delta is '0.0', not a number"),
        ((*LAYERS, 0, "skip"), nested(300), ""),
        ((*LAYERS, 0, "skip"), chain({"ForwardDifferences": {}}, 60), "its problem is too large"),
        ((*LAYERS, 0, "skip"), chain({"AveragePool": {"size": 1}}, 200_000), "its problem is too"),
        ((*LAYERS, 0, "channels"), 2**39, "layers.0 has 3 channels, which do not fit"),
        (LAYERS, [], "the tensor 'network.output' does not fit"),
        (("problem", "network", "concave"), "quadratic", "this proof is about a weakly convex"),
        (("problem", "operator"), {"Sum": {"terms": [{"Identity": {}}] * 100_000}}, "its problem"),
        (("problem", "operator"), {"Scaled": {"factor": 1.0, "operator": {"Unknown": {}}}},
         "a linear map is"),
        (("problem", "weight"), -math.inf, "weight is '-inf', not a number"),
        (("problem", "weight"), 0, "weight is '0', not a number"),
        (("problem", "box"), [1.0, 0.0], "the tensor 'x' is outside the box"),
        (("radius",), -1.0, "radius is '-1.0', not a number"),
        (("format",), 2, "its format is 2, not 1"),
    ],
)  # fmt: skip
def test_other_descriptions_are_refused_whatever_the_digest_says(
    tmp_path, proof, path, value, reason
):
    head, arrays = proof
    said = refused(tmp_path, proof_files.complete(changed(head, path, value), arrays), arrays)
    assert said.startswith(reason)
    assert len(said) < 400


@pytest.mark.parametrize(
    ("name", "edit", "reason"),
    [
        ("x", lambda x: x * 0 - 0.1, "outside the box"),
        ("x", lambda x: x[:1], "has the shape"),
        ("y", lambda y: y[:, :, :4], "'y' has the shape"),
        ("theta", lambda _: np.array([1.0, 1.1]), "'theta' must be"),
        ("theta", lambda _: np.array([1.0, -0.1]), "'theta' must be"),
        ("theta", lambda theta: theta[:1], "'theta' has the shape"),
        ("dual.1", lambda p: p[:, :2], "malformed"),
        ("dual.data", lambda v: v[:1], "'dual.data' has the shape"),
        ("network.layers.0.bias", lambda b: b[:2], "'network.layers.0.bias' has the shape"),
        ("network.layers.0.skip.weight", lambda w: w[:2], "skip.weight' has the shape"),
        ("another", lambda _: np.zeros(1), "['another'] have no meaning"),
    ],
)
def test_tensors_with_other_values_are_refused_by_name(tmp_path, proof, name, edit, reason):
    head, arrays = proof
    arrays = {**arrays, name: edit(arrays.get(name))}
    assert reason in refused(tmp_path, proof_files.complete(head, arrays), arrays)


def test_files_that_are_no_proofs(tmp_path, proof):
    head, arrays = proof
    for text in ("{", "[" * 100_000, "[]"):
        assert "malformed" in refused(tmp_path, text, arrays)
    assert "the description was changed" in refused(tmp_path, {**head, "more": 1}, arrays)
    other = tmp_path / "other.safetensors"
    proof_files.save_file(arrays, other)
    with pytest.raises(ProofRejected, match="not a proof file of convexlift"):
        verify(other)
    whole = proof_files.store(tmp_path / "a.proof", *proof).read_bytes()
    for part in (b"", whole[:4], whole[:100], whole[:-1], whole + b"0"):
        other.write_bytes(part)
        with pytest.raises((ProofRejected, OSError)):
            verify(other)
    with pytest.raises(OSError, match="no"):
        verify(tmp_path / "no.proof")


def test_flipped_bits_are_never_confirmed(tmp_path, proof):
    """Nothing but ProofRejected, or the same verdict where the bit has no meaning."""
    path = proof_files.store(tmp_path / "a.proof", *proof)
    whole, verdicts = path.read_bytes(), verify(path)
    generator = np.random.default_rng(1)
    for place in [*range(64), *generator.integers(64, len(whole), 300)]:
        wrong = bytearray(whole)
        wrong[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(wrong)
        try:
            assert verify(path) == verdicts
        except (ProofRejected, OSError) as error:
            assert str(error)  # noqa: PT017


def test_the_command_prints_a_line_for_each_image(tmp_path, proof, capsys):
    path = str(proof_files.store(tmp_path / "a.proof", *proof))
    assert main([path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"{path}: objective ") for line in lines)
    assert main([path, str(tmp_path / "no.proof")]) == 1
    assert "rejected: " in capsys.readouterr().err


def test_file_names_are_printed_in_one_line(tmp_path, capsys):
    path = tmp_path / "a\nb.proof: objective 0.0; no image is below 0.0\x1b[2K.proof"
    assert main([str(Forged().write(path))]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()


def test_a_copy_of_the_module_runs_without_the_package(tmp_path, proof):
    """With -S and only NumPy and safetensors in reach, torch cannot be imported."""
    path = proof_files.store(tmp_path / "a.proof", *proof)
    shutil.copy(proof_checker.__file__, tmp_path)
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    for module in ("numpy", "safetensors"):
        source = Path(__import__(module).__file__).parent
        (libraries / module).symlink_to(source)
        if (bundled := source.parent / f"{module}.libs").exists():
            (libraries / bundled.name).symlink_to(bundled)
    command = [sys.executable, "-S", "proof_checker.py", str(path)]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(libraries)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


# Time and memory


def of_zeros(height: int, width: int, *, dual: bool = True) -> Forged:
    """An image of this size that is 0, as its data are."""
    forged = Forged()
    forged.problem["image_shape"] = [1, height, width]
    for name in ("x", "y", *["dual.1"] * dual):
        forged.tensors[name] = np.zeros((1, 1, height, width), np.float32)
    forged.claim(0.0, 0.0)
    return forged


def many_pools() -> Forged:
    """130 layers that would take minutes each."""
    forged = of_zeros(300, 300, dual=False)
    layer = {**forged.layer, "skip": {"AveragePool": {"size": 300}}}
    forged.problem["network"]["layers"] = [layer] * 130
    forged.tensors |= {f"dual.{i + 1}": np.zeros((1, 1, 1, 1)) for i in range(130)}
    return forged


def large_kernels() -> Forged:
    """A kernel of 253 x 253 at an image of 127 x 127, in 200 terms of an operator."""
    forged, names = of_zeros(127, 127), [f"operator.{i}.kernel" for i in range(200)]
    forged.tensors |= {name: np.zeros((253, 253), np.float32) for name in names}
    terms = [{"Blur": {"kernel": name, "boundary": "zero"}} for name in names]
    forged.problem["operator"] = {"Sum": {"terms": terms}}
    return forged


def many_knots() -> Forged:
    """Each of 100,000 knots makes a copy of an image of 128 x 128 pixels."""
    forged = of_zeros(128, 128)
    widths = [float(t) for t in range(1, 100_001)]
    forged.layer["activation"] = {"HuberMixture": {"widths": widths}}
    forged.tensors["network.layers.0.shares"] = np.ones((1, 100_000))
    return forged


def many_rays() -> Forged:
    forged = of_zeros(8, 8)
    scan = {"image_size": [8, 8], "pixel_size": [1, 1]}
    names = {each: f"operator.{each}" for each in ("angles", "bins")}
    forged.problem["operator"] = {"ParallelBeam": scan | names}
    forged.tensors |= dict.fromkeys(names.values(), np.zeros(100_000))
    return forged


def long_row() -> Forged:
    """The matrix of a Fourier transform along a row of 40,000 pixels."""
    forged = of_zeros(1, 40_000)
    mri = {"mask": "operator.0.mask", "maps": "operator.1.maps", "channels": 1}
    forged.problem["operator"] = {"MRI": mri}
    forged.tensors["operator.0.mask"] = np.ones((1, 1, 1, 40_000))
    forged.tensors["operator.1.maps"] = np.ones((1, 2, 1, 40_000))
    return forged


@pytest.mark.parametrize("make", [many_pools, large_kernels, many_knots, many_rays, long_row])
def test_time_and_memory_are_counted_before_they_are_used(tmp_path, make):
    path = make().write(tmp_path / "large.proof")
    began = time.perf_counter()
    with pytest.raises(ProofRejected, match="too large to be checked"):
        verify(path)
    assert time.perf_counter() - began < 20


def test_long_images_take_the_memory_of_their_pixels(tmp_path):
    """Of a row of 40,000 pixels, and not of a matrix of 40,000 x 40,000."""
    forged = of_zeros(1, 40_000)
    forged.layer["skip"] = convolution(size=3, padding="reflect")
    forged.tensors["network.layers.0.skip.weight"] = np.ones((1, 1, 3, 3))
    path = forged.write(tmp_path / "long.proof")
    tracemalloc.start()
    (verdict,) = verify(path)
    assert verdict.gap == 0
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()


def test_files_with_holes_are_not_read(tmp_path):
    path = tmp_path / "hole.proof"
    with path.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(ProofRejected, match="too large to be checked"):
        verify(path)
