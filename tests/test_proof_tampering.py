"""Proof files that were changed, claim too much, or mean harm are refused, with a reason."""

from __future__ import annotations

import copy
import shutil
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import forged_proofs
import numpy as np
import proof_files
import pytest
import torch
import zoo

import convexlift as cl
from convexlift import proof_checker
from convexlift.proof_checker import ProofRejected, main, verify


@pytest.fixture(scope="module")
def proof() -> tuple[dict, dict]:
    """Description and arrays of a proof with every kind of tensor."""
    torch.set_default_dtype(torch.float64)
    data, _ = zoo.fidelity("weighted L2", batch=2)
    problem = cl.VariationalProblem(
        fidelity=cl.WeightedL2(data.y, data.weights + 0.1),
        operator=cl.Mask(proof_files.MASK) @ cl.Blur(proof_files.kernel(), "reflect"),
        regularizer=zoo.network("skips", cl.LeakyReLU(0.2)),
        weight=0.1,
        box=(0.0, 60.0),
    )
    return proof_files.contents(problem, proof_files.evidence(problem))


def refused(tmp_path, head, arrays) -> str:
    """The reason, after the name of the file."""
    path = proof_files.store(tmp_path / "wrong.proof", head, arrays)
    with pytest.raises(ProofRejected) as error:
        verify(path)
    assert str(error.value).startswith(f"{path}: ")
    return str(error.value).removeprefix(f"{path}: ")


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


def leaves(value, path=()):
    """Every place in a JSON value."""
    if isinstance(value, dict | list) and value:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from leaves(item, (*path, key))
    if path:
        yield path


def changed(value, path, new):
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


def test_every_changed_field_is_refused(tmp_path, proof):
    head, arrays = proof
    for path in leaves(head):
        wrong = changed(head, path, "something else")
        if path[0] == "digest" or len(path) > 1 or path[0] == "network_sha256":
            assert "the description was changed" in refused(tmp_path, wrong, arrays)
        else:
            refused(tmp_path, wrong, arrays)


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


@pytest.mark.parametrize(
    ("field", "change", "reason"),
    [
        ("objective", lambda c: c["objective"] * (1 - 1e-5), "claims[1].objective is"),
        ("objective", lambda c: c["objective"] * (1 - 1e-8), "claims[1].objective is"),
        (
            "lower_bound",
            lambda c: c["lower_bound"] + 1e-5 * c["objective"],
            "claims[1].lower_bound",
        ),
        (
            "lower_bound",
            lambda c: c["lower_bound"] + 2e-9 * c["objective"],
            "claims[1].lower_bound",
        ),
        ("guarantee", lambda c: "NONE", "claims[1].guarantee is 'NONE'"),
        ("objective", lambda c: True, "claims[1].objective is 'True', not a number"),
    ],
)
def test_claims_that_are_too_good_are_refused(tmp_path, proof, field, change, reason):
    head, arrays = copy.deepcopy(proof[0]), proof[1]
    head["claims"][1][field] = change(head["claims"][1])
    assert refused(tmp_path, proof_files.sealed(head), arrays).startswith(reason)


def test_modest_claims_are_not_refused_for_small_differences(tmp_path, proof):
    """Up to 1e-6 of the objective worse; the verdict holds the checker's own numbers."""
    head, arrays = copy.deepcopy(proof[0]), proof[1]
    before = verify(proof_files.store(tmp_path / "a.proof", head, arrays))
    head["claims"][0]["lower_bound"] -= 3.0
    head["claims"][0]["gap"] = 100.0
    after = verify(proof_files.store(tmp_path / "b.proof", proof_files.sealed(head), arrays))
    assert after == before


def test_local_bounds_do_not_pass_as_global(tmp_path):
    problem = zoo.problem("plain", cl.ReLU(), "masked L2", "no box")
    solution = cl.solve(problem, stop=cl.StopWhen(gap=1e-5))
    local = cl.certify(problem, solution.x, solution.duals)
    assert local.guarantee == (cl.Guarantee.WITHIN_RADIUS,)
    known = proof_files.Evidence(
        solution.x, solution.duals, torch.ones(1), local.objective, local.lower_bound,
        local.guarantee,
    )  # fmt: skip
    head, arrays = proof_files.contents(problem, known)
    (verdict,) = verify(proof_files.store(tmp_path / "a.proof", head, arrays))
    assert verdict.guarantee == "WITHIN_RADIUS"
    assert "within 1 of x on pixels" in str(verdict)
    head["claims"][0]["guarantee"] = "GLOBAL"
    reason = refused(tmp_path, proof_files.sealed(head), arrays)
    assert reason == "claims[0].guarantee is 'GLOBAL', but WITHIN_RADIUS is proved"
    wide = proof_files.sealed({**head, "radius": 1e6})
    wide["claims"][0]["guarantee"] = "WITHIN_RADIUS"
    assert "lower_bound" in refused(tmp_path, proof_files.sealed(wide), arrays)


def doubled(head, arrays, name, values):
    """The proof with another tensor, and digests that fit."""
    arrays = {**arrays, name: values}
    return proof_files.complete(head, arrays), arrays


def test_what_makes_a_network_not_convex_is_named(tmp_path, proof):
    head, arrays = proof
    for name in arrays:
        if not name.startswith("network.") or name.endswith(("skip.weight", "bias")):
            continue
        negative = arrays[name].copy()
        negative.flat[3] = -1e-30
        reason = refused(tmp_path, *doubled(head, arrays, name, negative))
        layer = name.removeprefix("network.").split(".maps.")[0].removesuffix(".weight")
        assert layer in reason
        assert "negative" in reason
    layers = ("problem", "network", "layers")
    wrong = changed(head, (*layers, 1, "activation"), {"Abs": {}})
    reason = refused(tmp_path, proof_files.complete(wrong, arrays), arrays)
    assert reason == "layers.1.activation decreases, and reads more than the image"
    for kind, field, value in (
        ("LeakyReLU", "slope", 1.5), ("ELU", "alpha", 1.5), ("Huber", "delta", 0.0),
        ("Softplus", "sharpness", -1.0), ("LeakyReLU", "slope", -0.1),
    ):  # fmt: skip
        wrong = changed(head, (*layers, 0, "activation"), {kind: {field: value}})
        reason = refused(tmp_path, proof_files.complete(wrong, arrays), arrays)
        assert reason.startswith(f"{field} is '{value}', not a number")
    map_of = {"ForwardDifferences": {}}
    wrong = changed(head, (*layers, 1, "previous"), map_of)
    assert "layers.1.previous has negative weights" in refused(
        tmp_path, proof_files.complete(wrong, arrays), arrays
    )


def test_tensors_with_other_values_are_refused_by_name(tmp_path, proof):
    head, arrays = proof
    cases = [
        ("x", np.full_like(arrays["x"], -0.1), "outside the box"),
        ("x", arrays["x"][:1], "has the shape"),
        ("x", np.where(arrays["x"] > 0.5, np.nan, 0.0), "'x' must hold finite numbers"),
        ("y", arrays["y"][:, :, :4], "'y' has the shape"),
        ("y", arrays["y"].astype(np.float16), "float32 or float64"),
        ("y", arrays["y"][:0], "'y' has the shape"),
        ("fidelity.weights", -arrays["fidelity.weights"], "negative"),
        ("theta", np.array([1.0, 1.1]), "'theta' must be"),
        ("theta", np.array([1.0, -0.1]), "'theta' must be"),
        ("theta", np.array([1.0]), "'theta' has the shape"),
        ("dual.1", arrays["dual.1"][:, :2], "malformed"),
        ("dual.3", arrays["dual.3"][:, :2], "malformed"),
        ("dual.data", arrays["dual.data"][:1], "'dual.data' has the shape"),
        ("network.layers.0.bias", np.zeros(4), "'network.layers.0.bias' has the shape"),
        ("network.layers.0.skip.weight", np.zeros((3, 1, 5, 5)), "skip.weight' has the shape"),
        ("another", np.zeros(1), "['another'] have no meaning"),
    ]
    for name, values, reason in cases:
        assert reason in refused(tmp_path, *doubled(head, arrays, name, values)), (name, reason)


def test_theta_below_one_needs_a_network_that_is_bounded_below(tmp_path):
    problem = zoo.problem("residual last", cl.ReLU(), "L2", "box")
    head, arrays = proof_files.contents(problem, proof_files.evidence(problem))
    reason = refused(tmp_path, *doubled(head, arrays, "theta", np.array([0.5])))
    assert reason == "the tensor 'theta' must be 1, or in [0, 1] if R is bounded below"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["L2", "L1", "KL", "masked L2"])
def test_worse_duals_prove_less_and_never_more(tmp_path, kind):
    """Random dual variables are a proof as well, of a bound below the optimum."""
    problem = zoo.problem("skips", cl.SmoothedLeakyReLU(0.2, 0.1), kind, "box")
    best = float(cl.solve(problem, stop=cl.StopWhen(gap=1e-6)).objective)
    head, arrays = proof_files.contents(problem, proof_files.evidence(problem))
    generator = np.random.default_rng(0)
    for size in (1e-300, 1e-3, 1.0, 1e3, 1e30):
        wild = {
            n: size * generator.standard_normal(a.shape) if n.startswith("dual.") else a
            for n, a in arrays.items()
        }
        modest = copy.deepcopy(head)
        modest["claims"][0] |= {"lower_bound": -1e9, "gap": 1e9}
        file = proof_files.store(tmp_path / "a.proof", proof_files.complete(modest, wild), wild)
        (verdict,) = verify(file)
        assert verdict.lower_bound <= best


def nested(depth: int) -> dict:
    value: dict = {"AveragePool": {"size": 1}}
    for _ in range(depth):
        value = {"Chain": {"maps": [value]}}
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("problem", "network", "layers", 0, "skip"), nested(300)),
        (("problem", "network", "layers", 0, "skip"),
         {"Chain": {"maps": [{"ForwardDifferences": {}}] * 60}}),
        (("problem", "network", "layers", 0, "skip"),
         {"Chain": {"maps": [{"AveragePool": {"size": 1}}] * 200_000}}),
        (("problem", "network", "layers", 2, "previous"), {"AveragePool": {"size": 10**30}}),
        (("problem", "network", "layers", 0, "channels"), 2**39),
        (("problem", "network", "layers", 0, "links"), {"-1": {"AveragePool": {"size": 1}}}),
        (("problem", "network", "layers", 0, "links"), {"two": {"AveragePool": {"size": 1}}}),
        (("problem", "network", "layers"), []),
        (("problem", "image_shape"), [10**9, 10**9, 10**9]),
        (("problem", "operator"), {"Sum": {"terms": [{"Identity": {}}] * 100_000}}),
        (("problem", "operator"), {"Scaled": {"factor": 1.0, "operator": {"Unknown": {}}}}),
        (("problem", "operator"), {"Diagonal": {"values": ["x"]}}),
        (("problem", "weight"), 0),
        (("problem", "box"), [1.0, 0.0]),
        (("problem", "box"), [None, 10**400]),
        (("radius",), -1.0),
    ],
)  # fmt: skip
def test_hostile_descriptions_are_refused_at_once(tmp_path, proof, path, value):
    wrong = proof_files.sealed(changed(proof[0], path, value))
    assert len(refused(tmp_path, wrong, proof[1])) < 400


def test_scanners_that_are_too_large_are_refused(tmp_path):
    problem = proof_files.behind(proof_files.OPERATORS["flat fan"](), (0, 1))
    head, arrays = proof_files.contents(problem, proof_files.evidence(problem))
    names = [name for name in arrays if name.startswith("operator.")]
    for name in names:
        head, arrays = doubled(head, arrays, name, np.zeros(100_000))
    assert "too large" in refused(tmp_path, head, arrays)


def test_files_that_are_no_proofs(tmp_path, proof):
    head, arrays = proof
    assert "malformed" in refused(tmp_path, "{", arrays)
    assert "malformed" in refused(tmp_path, "[" * 100_000, arrays)
    for name in ("NaN", "Infinity", "-Infinity"):
        wrong = changed(head, ("problem", "weight"), float(name.replace("Infinity", "inf")))
        assert "weight is " in refused(tmp_path, proof_files.sealed(wrong), arrays)
    assert "malformed" in refused(tmp_path, "[]", arrays)
    assert "the description was changed" in refused(tmp_path, {**head, "more": 1}, arrays)
    newer = proof_files.sealed({**head, "format": 2})
    assert refused(tmp_path, newer, arrays) == "its format is 2, not 1"
    weak = changed(head, ("problem", "network", "concave"), "quadratic")
    assert refused(tmp_path, proof_files.sealed(weak), arrays) == (
        "this proof is about a weakly convex problem, which versions from 0.2 on do not check"
    )
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
    places = [*range(64), *generator.integers(64, len(whole), 300)]
    for place in places:
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


def described_convolution(kernel: np.ndarray) -> dict:
    outputs, inputs, size, _ = kernel.shape
    sizes = {"in_channels": inputs, "out_channels": outputs, "kernel_size": size}
    return {"Convolution": {**sizes, "stride": 1, "padding": "reflect"}}


def test_long_images_take_the_memory_of_their_pixels(tmp_path):
    """Of a row of 40,000 pixels, and not of a matrix of 40,000 x 40,000."""
    forged = forged_proofs.Forged()
    forged.problem["image_shape"] = [1, 1, 40_000]
    for name in ("x", "y", "dual.1"):
        forged.tensors[name] = np.zeros((1, 1, 1, 40_000))
    kernel = np.ones((1, 1, 3, 3))
    forged.tensors["network.layers.0.skip.weight"] = kernel
    forged.layer["skip"] = described_convolution(kernel)
    forged.claim(0.0, 0.0)
    path = forged.write(tmp_path / "long.proof")
    tracemalloc.start()
    (verdict,) = verify(path)
    assert verdict.gap == 0
    assert tracemalloc.get_traced_memory()[1] < 10**8
    # The matrix of a Fourier transform along the row would be as large as that.
    mri = {"mask": "operator.0.mask", "maps": "operator.1.maps", "channels": 1}
    forged.problem["operator"] = {"MRI": mri}
    forged.tensors["operator.0.mask"] = np.ones((1, 1, 1, 40_000))
    forged.tensors["operator.1.maps"] = np.ones((1, 2, 1, 40_000))
    with pytest.raises(ProofRejected, match="too large to be checked"):
        verify(forged.write(tmp_path / "mri.proof"))
    assert tracemalloc.get_traced_memory()[1] < 10**8
    tracemalloc.stop()


def many_pools() -> forged_proofs.Forged:
    """130 layers that would take minutes each."""
    forged = forged_proofs.Forged()
    layer = {**forged.layer, "skip": {"AveragePool": {"size": 300}}}
    forged.problem["image_shape"] = [1, 300, 300]
    forged.problem["network"]["layers"] = [layer] * 130
    for name in ("x", "y"):
        forged.tensors[name] = np.zeros((1, 1, 300, 300), np.float32)
    for i in range(130):
        forged.tensors[f"dual.{i + 1}"] = np.zeros((1, 1, 1, 1))
    return forged


def large_kernels() -> forged_proofs.Forged:
    """A kernel of 253 x 253 at an image of 127 x 127, in 200 terms of an operator."""
    forged = forged_proofs.Forged()
    forged.problem["image_shape"] = [1, 127, 127]
    for name in ("x", "y", "dual.1", "dual.data"):
        forged.tensors[name] = np.zeros((1, 1, 127, 127))
    names = [f"operator.{i}.kernel" for i in range(200)]
    forged.tensors |= {name: np.zeros((253, 253), np.float32) for name in names}
    terms = [{"Blur": {"kernel": name, "boundary": "zero"}} for name in names]
    forged.problem["operator"] = {"Sum": {"terms": terms}}
    return forged


def many_knots() -> forged_proofs.Forged:
    """Each of 100,000 knots makes a copy of an image of 128 x 128 pixels."""
    forged = forged_proofs.Forged()
    forged.problem["image_shape"] = [1, 128, 128]
    for name in ("x", "y", "dual.1"):
        forged.tensors[name] = np.zeros((1, 1, 128, 128))
    widths = [float(t) for t in range(1, 100_001)]
    forged.layer["activation"] = {"HuberMixture": {"widths": widths}}
    forged.tensors["network.layers.0.shares"] = np.ones((1, 100_000))
    return forged


@pytest.mark.parametrize("make", [many_pools, large_kernels, many_knots])
def test_time_and_memory_are_counted_before_they_are_used(tmp_path, make):
    forged = make()
    forged.claim(0.0, 0.0)
    path = forged.write(tmp_path / "large.proof")
    began = time.perf_counter()
    with pytest.raises(ProofRejected, match="too large to be checked"):
        verify(path)
    assert time.perf_counter() - began < 20


def test_files_with_holes_are_not_read(tmp_path):
    path = tmp_path / "hole.proof"
    with path.open("wb") as file:
        file.truncate(2**34)
    with pytest.raises(ProofRejected, match="too large to be checked"):
        verify(path)


def test_file_names_are_printed_in_one_line(tmp_path, capsys):
    path = tmp_path / "a\nb.proof: objective 0.0; no image is below 0.0\x1b[2K.proof"
    forged_proofs.Forged().write(path)
    assert main([str(path)]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.isprintable()
