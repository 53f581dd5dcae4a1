"""Image sets and batches: nothing lost, nothing drawn twice, nothing that depends on the past."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from convexlift.training import Batch, BatchSampler, ImageSet


def numbered(count: int, size: tuple[int, int] = (6, 6)) -> ImageSet:
    """Image i is i / 65535 everywhere."""
    return ImageSet.from_tensors(
        [torch.full(size, i).to(torch.uint16) for i in range(count)],
        [f"{i}.png" for i in range(count)],
    )


def textured(count: int = 5, size: tuple[int, int] = (23, 31)) -> ImageSet:
    """Every pixel of every image is a number of its own."""
    values = torch.arange(count * size[0] * size[1]).reshape(count, *size)
    return ImageSet.from_tensors(list(values.to(torch.uint16)))


def same(a: Batch, b: Batch) -> bool:
    return (a.step, a.seed) == (b.step, b.seed) and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("clean", "indices", "positions")
    )


def draws(batch: Batch, stream: int = 0) -> list[tuple[float, ...]]:
    return [
        tuple(torch.rand(4, generator=generator).tolist())
        for generator in batch.generators(stream=stream)
    ]


# Folders and tensors


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "photos"
    place.mkdir()
    for i, name in enumerate(["b.png", "a.PNG", "c.jpg", ".hidden.png"]):
        Image.fromarray(np.full((4, 5 + i), 10 * i, dtype=np.uint8)).save(place / name)
    np.save(place / "d.npy", np.full((3, 3), 0.5))
    (place / "notes.txt").write_text("no picture")
    (place / "folder.png").mkdir()
    return place


def test_a_folder_is_read_in_the_order_of_its_names(folder):
    images = ImageSet.from_folder(folder)
    assert images.names == ("a.PNG", "b.png", "c.jpg", "d.npy")
    assert [tuple(image.shape) for image in images] == [(1, 4, 6), (1, 4, 5), (1, 4, 7), (1, 3, 3)]
    assert all(image.dtype == torch.float32 for image in images)
    assert torch.equal(images[0], torch.full((1, 4, 6), 10 / 255, dtype=torch.float32))
    assert [plane.dtype for plane in images.planes] == ["uint8", "uint8", "uint8", "float32"]
    assert ImageSet.from_folder(folder, limit=2).names == ("a.PNG", "b.png")
    assert len(ImageSet.from_folder(folder, limit=100)) == 4


def test_folders_are_concatenated(folder, tmp_path):
    other = tmp_path / "more"
    other.mkdir()
    np.save(other / "a.npy", np.zeros((2, 2)))
    both = ImageSet.from_folders([folder, other], limit=1)
    assert both.names == ("photos/a.PNG", "more/a.npy")
    assert torch.equal(both[0], ImageSet.from_folder(folder)[0])
    with pytest.raises(ValueError, match=r"photos is given twice; name each folder once"):
        ImageSet.from_folders([folder, other, other / ".." / "photos"])
    with pytest.raises(ValueError, match="no folder was given; give at least one"):
        ImageSet.from_folders([])


def test_folders_that_cannot_be_used(folder, tmp_path):
    with pytest.raises(ValueError, match=r"missing does not exist; give a folder .*\.png, \.jpg"):
        ImageSet.from_folder(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"b\.png is not a folder"):
        ImageSet.from_folder(folder / "b.png")
    with pytest.raises(ValueError, match=r"folder\.png has no pictures; .*\.npy, \.png, .*\.tif"):
        ImageSet.from_folder(folder / "folder.png")
    with pytest.raises(ValueError, match=r"limit must be at least 1, or None .* got 0"):
        ImageSet.from_folder(folder, limit=0)
    (folder / "broken.png").write_bytes((folder / "b.png").read_bytes()[:40])
    with pytest.raises(ValueError, match=r"photos/broken\.png cannot be read as a picture"):
        ImageSet.from_folder(folder)


def test_tensors_are_copied():
    source = torch.rand(1, 4, 5)
    images = ImageSet.from_tensors([source, source.to(torch.bfloat16), source[0] > 0.5])
    before = images[0]
    source.zero_()
    images[0].zero_()
    assert torch.equal(images[0], before)
    assert before.abs().sum() > 0
    assert images.names == ("image 0", "image 1", "image 2")
    with pytest.raises(ValueError, match="read-only"):
        images.planes[0][0, 0] = 1


def test_tensors_that_cannot_be_used():
    with pytest.raises(ValueError, match="at least one image"):
        ImageSet.from_tensors([])
    with pytest.raises(ValueError, match="2 images need as many names, got 1"):
        ImageSet.from_tensors([torch.zeros(2, 2)] * 2, ["a"])
    with pytest.raises(ValueError, match=r"image 1 and image 0 are not both grey"):
        ImageSet.from_tensors([torch.zeros(2, 2), torch.zeros(3, 2, 2)])
    with pytest.raises(ValueError, match=r"mine is nan at \(0, 1\)"):
        ImageSet.from_tensors([torch.tensor([[0.0, torch.nan]])], ["mine"])


def test_sizes_are_checked_by_name():
    images = ImageSet.from_tensors([torch.zeros(4, 5), torch.zeros(5, 4)], ["a.png", "b.png"])
    images.require_at_least((4, 4))
    with pytest.raises(ValueError, match=r"b\.png is 5 x 4, not 4 x 5; use images of one size"):
        images.require_size((4, 5))
    with pytest.raises(ValueError, match=r"a\.png is 4 x 5, smaller than 5 x 4; leave it out"):
        images.require_at_least((5, 4))
    with pytest.raises(ValueError, match=r"b\.png is 5 x 4, smaller than 4 x 5"):
        images.require_at_least((4, 5))


def test_the_fingerprint_sees_every_change(folder):
    original = ImageSet.from_folder(folder)
    prints = [original.fingerprint(), numbered(3).fingerprint()]
    assert ImageSet.from_folder(folder).fingerprint() == prints[0]
    pixels = torch.zeros(2, 6, dtype=torch.uint8)
    for image, name in itertools.product(
        [pixels, pixels.reshape(3, 4), pixels.float(), pixels.index_fill(0, torch.tensor(1), 1)],
        ["a", "b"],
    ):
        prints.append(ImageSet.from_tensors([image], [name]).fingerprint())
    prints.append(ImageSet.from_tensors([pixels, pixels], ["a", "b"]).fingerprint())
    prints.append(ImageSet.from_tensors([pixels, pixels], ["b", "a"]).fingerprint())
    assert len(set(prints)) == len(prints)
    assert all(len(text) == 64 for text in prints)


# Splits


@pytest.mark.parametrize(("held_out", "count"), [(1, 1), (3, 3), (19, 19), (0.25, 5), (0.5, 10)])
def test_a_split_is_a_partition(held_out, count):
    images = numbered(20)
    training, validation = images.split(held_out, seed=3)
    assert len(validation) == count
    assert not set(training.names) & set(validation.names)
    assert set(training.names) | set(validation.names) == set(images.names)
    for part in (training, validation):
        assert [f"{round(65535 * float(image.mean()))}.png" for image in part] == list(part.names)
        places = [images.names.index(name) for name in part.names]
        assert places == sorted(places)


def test_a_split_depends_on_its_seed_only():
    choices = [numbered(20).split(5, seed)[1].names for seed in (0, 1, 2, 0)]
    assert choices[0] == choices[3]
    assert len(set(choices)) == 3


def test_images_by_name():
    images = numbered(6)
    odd = images.select(lambda name: int(name.removesuffix(".png")) % 2 == 1)
    assert odd.names == ("1.png", "3.png", "5.png")
    assert torch.equal(odd[1], images[3])
    with pytest.raises(ValueError, match="select keeps none of 6 images"):
        images.select(lambda name: False)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (0, "holding out 0 of 10 images leaves none for validation; hold out 1 to 9 of them$"),
        (-1, "leaves none for validation"),
        (0.01, r"holding out 0\.01 of 10 images leaves none for validation"),
        (10, "holding out 10 of 10 images leaves none for training"),
        (0.99, "leaves none for training"),
        (1.0, r"a held-out fraction must lie between 0 and 1, got 1\.0"),
        (float("nan"), "between 0 and 1, got nan"),
    ],
)
def test_splits_that_leave_nothing(held_out, message):
    with pytest.raises(ValueError, match=message):
        numbered(10).split(held_out, seed=0)


def test_one_image_cannot_be_split():
    with pytest.raises(ValueError, match=r"there is only 0\.png; a split needs at least two"):
        numbered(1).split(1, seed=0)


# Batches


def test_the_past_does_not_matter():
    def sampler() -> BatchSampler:
        return BatchSampler(textured(), 3, crop=7, rotations=True, seed=5)

    used = sampler()
    for step in (9, 0, 4, 4):
        used.batch(step)
        torch.rand(3)
        np.random.default_rng().random()
    for step in (4, 0, 1000):
        assert same(used.batch(step), sampler().batch(step))
    assert not torch.equal(used.batch(0).clean, used.batch(1).clean)
    other = BatchSampler(textured(), 3, crop=7, rotations=True, seed=6)
    assert not torch.equal(used.batch(0).clean, other.batch(0).clean)
    epochs = BatchSampler(numbered(30), 30)
    assert len({tuple(epochs.batch(epoch).indices.tolist()) for epoch in range(5)}) == 5


@given(count=st.integers(1, 17), batch_size=st.integers(1, 23), seed=st.integers(-5, 2**70))
def test_every_image_once_in_every_epoch(count, batch_size, seed):
    sampler = BatchSampler(numbered(count, (1, 1)), batch_size, seed=seed)
    steps = -(-3 * count // batch_size)
    visited = [i for step in range(steps) for i in sampler.batch(step).indices.tolist()]
    for epoch in range(3):
        assert sorted(visited[epoch * count : (epoch + 1) * count]) == list(range(count))
    assert (sampler.steps_per_epoch - 1) * batch_size < count
    assert sampler.steps_per_epoch * batch_size >= count


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 12])
@pytest.mark.parametrize("step", [0, 7])
def test_the_ranks_share_the_batch_of_one_process(world, step):
    sampler = BatchSampler(textured(), 12, crop=9, flips=True, seed=1)
    whole = sampler.batch(step)
    noise = draws(whole, stream=2)
    seen = []
    for rank in range(world):
        part = sampler.batch(step, rank, world)
        places = part.positions
        assert places.tolist() == list(range(rank, 12, world))
        assert torch.equal(part.clean, whole.clean[places])
        assert torch.equal(part.indices, whole.indices[places])
        assert draws(part, stream=2) == [noise[k] for k in places.tolist()]
        seen += places.tolist()
    assert sorted(seen) == list(range(12))


def test_every_sample_has_noise_of_its_own():
    images = numbered(3)
    numbers = [
        draw
        for seed, step, stream in itertools.product((0, 1), (0, 1, 2), (0, 1))
        for draw in draws(BatchSampler(images, 4, seed=seed).batch(step), stream)
    ]
    assert len(set(numbers)) == len(numbers) == 48
    batch = BatchSampler(images, 4).batch(0)
    assert draws(batch) == draws(batch)  # new generators, the same numbers


def find(crop: torch.Tensor, image: torch.Tensor) -> tuple[int, int] | None:
    """Where the crop lies in the image, by brute force."""
    windows = image[0].unfold(0, crop.shape[-2], 1).unfold(1, crop.shape[-1], 1)
    places = (windows == crop[0]).all(-1).all(-1).nonzero().tolist()
    return tuple(places[0]) if places else None


def symmetries(crop: torch.Tensor) -> list[torch.Tensor]:
    """The crop as it is, mirrored, and then its three rotations, mirrored or not."""
    return [
        version
        for turns in range(4)
        for version in (crop.rot90(turns, (-2, -1)), crop.rot90(turns, (-2, -1)).flip(-1))
    ]


@pytest.mark.parametrize(
    ("options", "allowed"),
    [({}, {0}), ({"flips": True}, {0, 1}), ({"rotations": True}, set(range(8)))],
)
def test_crops_lie_in_their_image_and_are_turned_as_allowed(options, allowed):
    images = textured()
    sampler = BatchSampler(images, 300, crop=20, seed=2, **options)
    seen, places = set(), set()
    for step in range(2):
        batch = sampler.batch(step)
        for crop, i in zip(batch.clean, batch.indices.tolist(), strict=True):
            found = [find(version, images[i]) for version in symmetries(crop)]
            (which,) = [s for s, place in enumerate(found) if place is not None]
            seen.add(which)
            places.add(found[which])
    assert seen == allowed
    assert places == set(itertools.product(range(4), range(12)))  # every place there is


def test_chances_are_even():
    gradient = ImageSet.from_tensors([torch.arange(64).reshape(8, 8).to(torch.uint8)])
    batch = BatchSampler(gradient, 4000, crop=2, flips=True).batch(0)
    mirrored = batch.clean[:, 0, 0, 0] > batch.clean[:, 0, 0, 1]
    assert float(mirrored.double().mean()) == pytest.approx(0.5, abs=0.03)
    corner = (255 * batch.clean.amin((1, 2, 3))).round().long()
    rows, columns = corner // 8, corner % 8
    for places in (rows, columns):
        assert torch.bincount(places, minlength=7).double().div(4000).sub(1 / 7).abs().max() < 0.03
    both = torch.stack([rows, columns, mirrored.long()]).double()
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.06


def test_whole_images_of_mixed_precision():
    images = ImageSet.from_tensors(
        [
            torch.full((2, 3), 51, dtype=torch.uint8),
            torch.full((2, 3), 13107, dtype=torch.int32).to(torch.uint16),
            torch.full((2, 3), 0.2),
        ]
    )
    batch = BatchSampler(images, 3, flips=True).batch(0)
    assert torch.equal(batch.clean, torch.full((3, 1, 2, 3), 0.2, dtype=torch.float32))
    for clean, i in zip(batch.clean, batch.indices.tolist(), strict=True):
        assert torch.equal(clean, images[i])


def test_samplers_that_cannot_work():
    mixed = ImageSet.from_tensors([torch.zeros(4, 5), torch.zeros(5, 4)], ["a.png", "b.png"])
    with pytest.raises(ValueError, match=r"b\.png is 5 x 4, not 4 x 5; .* or take crops"):
        BatchSampler(mixed, 2)
    with pytest.raises(ValueError, match=r"a\.png is 4 x 5, smaller than 5 x 5"):
        BatchSampler(mixed, 2, crop=5)
    with pytest.raises(ValueError, match="images of 2 x 3 cannot be rotated into a batch"):
        BatchSampler(numbered(2, (2, 3)), 2, rotations=True)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        BatchSampler(mixed, 0, crop=2)
    with pytest.raises(
        ValueError, match="crop must be at least 1, or None for whole images; got 0"
    ):
        BatchSampler(mixed, 2, crop=0)
    sampler = BatchSampler(mixed, 6, crop=2)
    with pytest.raises(ValueError, match=r"4 processes cannot share a batch of 6 .* batch_size=8"):
        sampler.batch(0, rank=0, world=4)
    for rank, world in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"got rank {rank} of {world}"):
            sampler.batch(0, rank, world)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        sampler.batch(-1)


def test_colour_images_are_turned_and_cropped_as_one(tmp_path):
    """Each channel of a sample in colour is the same view, and values are those of the file."""
    rows, columns = torch.meshgrid(torch.arange(40), torch.arange(50), indexing="ij")
    colours = torch.stack([rows, columns, rows + 2 * columns]).to(torch.uint8)
    Image.fromarray(colours.permute(1, 2, 0).numpy()).save(tmp_path / "a.png")
    images = ImageSet.from_folder(tmp_path, colour=True)
    assert images.channels == 3
    assert images.size(0) == (40, 50)
    assert torch.equal((255 * images[0]).round().to(torch.uint8), colours)
    assert torch.equal(ImageSet.from_tensors([colours])[0], images[0])
    for step in range(8):
        batch = BatchSampler(images, 2, 16, rotations=True).batch(step)
        first, second, third = (255 * batch.clean).round().unbind(1)
        assert batch.clean.shape == (2, 3, 16, 16)
        assert torch.equal(third, first + 2 * second)
