"""Images solved in tiles: one certificate for the whole image, whatever the tiles."""

from __future__ import annotations

import io
import itertools
import math
from dataclasses import replace

import forked
import pytest
import reconstruct_runs
import torch
from PIL import Image

import convexlift as cl
from convexlift.files.atomic import temporary_folder
from convexlift.images import load_example, load_image, save_image
from convexlift.networks import Convolution, ridge
from convexlift.problems.claims import objective_above
from convexlift.problems.rigorous_bounds import bounds_below
from convexlift.problems.windows import DUAL, LargeProblem, core_sums
from convexlift.reconstruction.contents import InputError
from convexlift.tensors import Blocks

SMALL = cl.Tiles(size=32, overlap=16)
SIGMA = 25 / 255


def picture(height=80, width=72, channels=1, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    clean = load_example("camera")[..., 100 : 100 + height, 100 : 100 + width]
    noise = torch.randn((1, channels, height, width), generator=generator)
    return (clean + SIGMA * noise).to(dtype)


def layer(h, padding, bias):
    filters = h.group * 3
    skip = Convolution(1, filters, 5, padding=padding)
    network = cl.InputConvexNetwork([cl.ConvexLayer(h, channels=filters, skip=skip, bias=bias)])
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        network.output.copy_(0.02 + 0.05 * torch.rand(network.output.shape, generator=generator))
    return network


def fidelities(y):
    seen = (torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.7).to(y)
    positive = y.abs() + 0.1
    return {
        "L2": (cl.SquaredL2(y), cl.Identity(), None),
        "masked L2": (cl.SquaredL2(y * seen), cl.Mask(seen), (0.0, 1.0)),
        "weighted L2": (cl.WeightedL2(y, positive), cl.Identity(), (None, 2.0)),
        "L1": (cl.L1(y, 0.3), cl.Identity(), (0.0, 1.0)),
        "KL": (cl.KullbackLeibler(positive, 0.1), 2.0 * cl.Identity(), (0.0, 3.0)),
    }


@pytest.mark.sampled(4)
@pytest.mark.parametrize("padding", ["zero", "reflect", "replicate"])
@pytest.mark.parametrize("name", fidelities(picture()))
@pytest.mark.parametrize("h", [cl.Huber(0.1), cl.LeakyReLU(0.2), cl.GroupNorm(2)], ids=str)
def test_the_shares_of_all_cores_add_up_to_the_claim_about_the_whole_image(name, padding, h):
    # For an image and dual variables that are far from optimal: an identity, not a limit.
    y = picture(dtype=torch.float64)
    fidelity, operator, box = fidelities(y)[name]
    network = layer(h, padding, bias=True).double()
    parts = {"fidelity": fidelity, "operator": operator, "regularizer": network, "box": box}
    problem = cl.VariationalProblem(weight=0.7, **parts)
    large = LargeProblem.of(problem)
    generator = torch.Generator().manual_seed(3)
    x = problem.bounds.project(torch.rand(y.shape, generator=generator, dtype=y.dtype))
    a = problem.network.forward(x).a[0]
    p = 0.02 * torch.randn(a.shape, generator=generator, dtype=y.dtype)
    whole = bounds_below(problem, x, Blocks({DUAL: p}), 1.0).everywhere.value
    sums = []
    for core in cl.Tiles(size=16, overlap=16).cores(large.size):
        outer = core.grown(2 * large.radius, large.size)
        window = large.window(outer)
        sums.append(core_sums(large, window, core, outer, outer.of(x), outer.of(p)))
    objective = sum(each.data_term + each.regularizer for each in sums)
    assert objective == pytest.approx(float(objective_above(problem, x)), rel=1e-11)
    assert sum(each.bound for each in sums) == pytest.approx(float(whole), rel=1e-10)


@pytest.mark.parametrize("name", ["tv", "ridge", "masked", "salt and pepper"])
def test_tiles_and_the_whole_image_have_the_same_optimum(name):
    y = picture()
    network = (
        ridge(channels=6, kernel=5).float() if name == "ridge" else cl.TotalVariation().float()
    )
    parts = {"fidelity": cl.SquaredL2(y), "weight": 0.06, "regularizer": network.float()}
    if name == "masked":
        fidelity, operator, box = fidelities(y)["masked L2"]
        parts |= {"fidelity": fidelity, "operator": operator, "box": box}
    if name == "salt and pepper":
        parts |= {"fidelity": cl.L1(y.clamp(0, 1)), "weight": 0.7, "box": (0.0, 1.0)}
    problem = cl.VariationalProblem(**parts)
    whole = cl.solve(problem, stop=cl.StopWhen(gap=1e-4))
    tiles = cl.solve_tiles(problem, tiles=SMALL, stop=cl.StopWhen(gap=1e-3))
    assert tiles.status == (cl.Status.CONVERGED,)
    assert tiles.guarantee == (cl.Guarantee.GLOBAL,)
    assert float(tiles.gap) <= 1e-3
    # Both intervals hold the optimum.
    assert float(tiles.lower_bound) <= float(whole.objective)
    assert float(whole.lower_bound) <= float(tiles.objective)
    assert float(problem.objective(tiles.x)) == pytest.approx(float(tiles.objective), rel=1e-5)


def test_an_adaptive_regularizer_reads_tile_by_tile():
    y = picture(96, 80)
    network = cl.load("photo-open")
    large = LargeProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0, noise=SIGMA, box=(0.0, 1.0)
    )
    found = cl.solve_tiles(large, tiles=cl.Tiles(size=48, overlap=32), stop=cl.StopWhen(gap=1e-2))
    assert found.status == (cl.Status.CONVERGED,)
    assert found.meaning[0].startswith("given the weights that the guide read")
    assert found.weight_map is not None
    assert found.weight_map.shape == y.shape
    problem = cl.VariationalProblem(
        fidelity=cl.SquaredL2(y), regularizer=network, weight=1.0, noise=SIGMA, box=(0.0, 1.0)
    )
    whole = cl.solve(problem, stop=cl.StopWhen(gap=1e-2))
    assert float((found.x - whole.x).abs().max()) < 0.05
    assert float((found.x - whole.x).square().mean().sqrt()) < 0.004
    # A problem that is stated already has its weights, and they are the same in tiles.
    stated = cl.solve_tiles(problem, tiles=SMALL, stop=cl.StopWhen(gap=1e-2))
    assert float(stated.lower_bound) <= float(whole.objective)
    assert float(whole.lower_bound) <= float(stated.objective)


def test_another_sweep_has_wider_margins_and_a_smaller_gap():
    problem = LargeProblem(
        fidelity=cl.SquaredL2(picture()), regularizer=cl.TotalVariation().float(), weight=0.2
    )
    stop = cl.StopWhen(gap=1e-4)
    options = cl.Tiles(size=32, overlap=16, sweeps=8)
    found = cl.solve_tiles(problem, tiles=options, stop=stop)
    gaps = found.history["gap"][:, 0].tolist()
    assert len(gaps) > 1
    # Where all tiles are solved already, a sweep only stores their duals again, in 16 bits.
    assert all(later <= 1.0001 * sooner for sooner, later in itertools.pairwise(gaps))
    assert found.status == (cl.Status.CONVERGED,)
    one = cl.solve_tiles(problem, tiles=replace(options, sweeps=1), stop=stop)
    assert one.status == (cl.Status.ITERATION_LIMIT,)
    assert float(one.gap) == gaps[0]


@pytest.mark.parametrize("size", [(16, 16), (17, 100), (80, 72), (47, 49)])
def test_cores_are_a_partition(size):
    count = torch.zeros(size)
    for core in SMALL.cores(size):
        core.of(count).add_(1)
    assert bool((count == 1).all())


def test_what_tiles_cannot_do_is_refused_with_the_reason():
    y = picture(32, 32)
    parts = {"weight": 0.1, "fidelity": cl.SquaredL2(y), "regularizer": cl.TotalVariation().float()}
    with pytest.raises(ValueError, match="single image"):
        LargeProblem(**parts | {"fidelity": cl.SquaredL2(torch.cat([y, y]))})
    with pytest.raises(ValueError, match="not diagonal"):
        LargeProblem(**parts, operator=cl.Blur(torch.ones(3, 3) / 9))
    for network in (cl.networks.convolutional(), layer(cl.Abs(), "circular", bias=False)):
        with pytest.raises(ValueError, match="one layer"):
            LargeProblem(**parts | {"regularizer": network})
    for wrong in ({"size": 100}, {"overlap": 8}, {"sweeps": 0}):
        with pytest.raises(ValueError, match=r"multiples of 16|at least"):
            cl.Tiles(**wrong)
    found = cl.solve_tiles(LargeProblem(**parts), tiles=SMALL)
    with pytest.raises(ValueError, match="not kept"):
        found.proof.save("never.proof")


def test_a_disk_that_is_too_small_is_reported_before_any_work(monkeypatch):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    problem = LargeProblem(
        fidelity=cl.SquaredL2(picture()), regularizer=cl.TotalVariation().float(), weight=0.2
    )
    with pytest.raises(OSError, match="folder"):
        cl.solve_tiles(problem, tiles=SMALL)


def test_folders_of_killed_processes_are_removed(tmp_path):
    """And no others: of this process, of other machines, and of the user."""
    code = """
import os, signal
from pathlib import Path
from convexlift.files.atomic import temporary_folder
with temporary_folder(Path.cwd()) as place:
    (place / "x.npy").write_bytes(b"a tile")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = forked.start(code, tmp_path, {}, tmp_path / "output.txt")
    killed.join()
    (left,) = tmp_path.glob("convexlift-*")
    assert (left / "x.npy").exists()
    kept = [left.with_name(name) for name in (
        f"convexlift-elsewhere-{killed.pid}-abcdefgh", f"{left.name}-mine", "convexlift-results",
    )]  # fmt: skip
    for each in kept:
        each.mkdir()
    with temporary_folder(tmp_path) as other:  # of this process
        tiles = replace(SMALL, folder=tmp_path)
        problem = cl.VariationalProblem(
            fidelity=cl.SquaredL2(picture()), regularizer=cl.TotalVariation().float(), weight=0.1
        )
        cl.solve_tiles(problem, tiles=tiles, stop=cl.StopWhen(gap=0.1))
        assert sorted(tmp_path.glob("convexlift-*")) == sorted([*kept, other])


@pytest.mark.parametrize("how", ["callback", "keyboard", "keyboard in the callback", "time"])
def test_what_is_done_is_kept_with_an_honest_gap(how):
    problem = LargeProblem(
        fidelity=cl.SquaredL2(picture()), regularizer=cl.TotalVariation().float(), weight=0.2
    )
    seen, pressed = [], []

    def watch(progress):
        seen.append(progress)
        if how == "keyboard in the callback" and len(seen) == 2:
            raise KeyboardInterrupt
        return how == "callback" and len(seen) == 2

    class Impatient(cl.PDHG):
        def solver(self, problem):
            if how == "keyboard" and len(seen) == 2 and not pressed:
                pressed.append("Ctrl-C")
                raise KeyboardInterrupt
            return super().solver(problem)

    stop = cl.StopWhen(gap=1e-3, seconds=1e-9 if how == "time" else None)
    found = cl.solve_tiles(problem, tiles=SMALL, method=Impatient(), stop=stop, callback=watch)
    expected = {"callback": "STOPPED", "time": "TIME_LIMIT"}.get(how, "INTERRUPTED")
    assert found.status[0].name == expected
    assert math.isfinite(float(found.gap))
    assert float(found.gap) > 1e-3
    assert bool(found.x.isfinite().all())
    assert all(each.tiles == 4 and each.iteration <= 4 for each in seen)


def with_free_memory(monkeypatch, count):
    """As on a computer that has so many bytes to give."""
    whole = open

    def read(place, *more, **options):
        said = io.StringIO(f"MemAvailable: {count // 1024} kB")
        return said if place == "/proc/meminfo" else whole(place, *more, **options)

    monkeypatch.setattr("builtins.open", read)


def test_tiles_are_taken_where_the_memory_is_too_small(monkeypatch):
    given = {"regularizer": "tv", "sigma": 0.1, "tolerance": 1e-2, "max_iterations": 100}
    image = torch.rand(288, 288)
    assert "notes" not in cl.reconstruct(image, **given, tiles=128).record  # as asked for
    with_free_memory(monkeypatch, 34 * 10**6)
    assert cl.reconstruct(image, **given).record["notes"] == [
        "it is too large for the free memory, so it is solved in tiles of 128 x 128 pixels, with "
        "one certificate for the whole"
    ]
    assert "notes" not in cl.reconstruct(image[:128, :128], **given).record
    for free, options, reason in (
        (10**7, {"tiles": "off"}, "Leave out tiles= off"),
        (10**7, {"method": "lbfgs"}, "need method= default"),
        (10**6, {}, "Free memory"),
    ):
        with_free_memory(monkeypatch, free)
        with pytest.raises(InputError, match=reason):
            cl.reconstruct(image, **given, **options)


def test_a_file_for_which_the_memory_is_too_small_stops_no_other(tmp_path, monkeypatch):
    for name, size in (("a", 16), ("b", 288), ("c", 16)):
        save_image(tmp_path / "in" / f"{name}.png", torch.rand(size, size))
    with_free_memory(monkeypatch, 10**6)
    result = reconstruct_runs.solved(tmp_path / "in", tmp_path / "out", sigma=0.05)
    assert [source.path.name for source, _ in result.failures] == ["b.png"]
    assert len(result.records) == 2


def test_channels_are_divided_one_after_the_other():
    y = picture(150, 40).expand(3, -1, -1, -1)[:, 0]
    options = {"regularizer": "tv", "tolerance": 1e-2, "sigma": SIGMA, "device": "cpu"}
    found = cl.reconstruct(y, tiles=128, **options)
    assert found.x.shape == (3, 150, 40)
    assert torch.equal(found.x[0], found.x[2])


def test_a_file_is_restored_in_tiles(tmp_path):
    noisy = (255 * picture(150, 140)[0, 0].clamp(0, 1)).round().byte().numpy()
    Image.fromarray(noisy).save(tmp_path / "noisy.png")
    whole = reconstruct_runs.run("denoise", tmp_path / "noisy.png", "-o", tmp_path / "whole.png")
    options = ("denoise", tmp_path / "noisy.png", "-o", tmp_path / "tiles.png", "--tiles", 128)
    result = reconstruct_runs.run(*options)
    assert (whole.exit_code, result.exit_code) == (0, 0), result.output
    one, other = (load_image(tmp_path / name) for name in ("whole.png", "tiles.png"))
    assert float((one - other).abs().max()) <= 6 / 255
    refused = reconstruct_runs.run(*options, "--proof", "--force")
    assert refused.exit_code == 1
    assert "too large for a proof file" in refused.output
    mapped = reconstruct_runs.run(*options, "--gap-map", "--force")
    assert mapped.exit_code == 1
    assert "no gap maps of tiles" in " ".join(mapped.output.split())
    wrong = reconstruct_runs.run(*options[:4], "--tiles", 100)
    assert wrong.exit_code == 2
    assert "multiple of 16" in wrong.output
