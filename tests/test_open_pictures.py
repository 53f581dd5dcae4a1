"""Training pictures without conditions of use: the table of packages, and pictures from them."""

import io
import json
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from experiments import open_pictures

NAMES = {"a_1_all.deb": "./usr/a.png", "b-1.whl": "b/a.png", "c-1.tgz": "package/a.png"}


def picture(seed):
    """A PNG file of 100 x 70 random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (70, 100, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file := io.BytesIO(), format="PNG")
    return file.getvalue()


def tarred(name, data, compression):
    with tarfile.open(fileobj=(file := io.BytesIO()), mode=f"w:{compression}") as tar:
        (info := tarfile.TarInfo(name)).size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def debian(data):
    """An ar archive with a member of odd length before the data."""
    members = [(b"debian-binary", b"2.0"), (b"data.tar.xz", data)]
    entries = [
        name.ljust(48) + str(len(body)).encode().ljust(10) + b"`\n" + body + b"\n" * (len(body) % 2)
        for name, body in members
    ]
    return b"!<arch>\n" + b"".join(entries)


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """One package of each kind, and their table."""
    (folder := tmp_path / "packages").mkdir()
    deb, whl, tgz = NAMES
    (folder / deb).write_bytes(debian(tarred(NAMES[deb], picture(0), "xz")))
    with zipfile.ZipFile(folder / whl, "w") as wheel:
        wheel.writestr(NAMES[whl], picture(1))
    (folder / tgz).write_bytes(tarred(NAMES[tgz], picture(2), "gz"))
    pictures = [{"file": "a.png", "scale": 2, "details": 1}]
    table = [
        {"package": f"@scope/{archive[0]}", "version": "1", "archive": archive,
         "folder": name[:-5], "pictures": pictures}
        for archive, name in NAMES.items()
    ]  # fmt: skip
    (tmp_path / "table.json").write_text(json.dumps(table))
    monkeypatch.setattr(open_pictures, "TABLE", tmp_path / "table.json")
    monkeypatch.setattr(open_pictures, "LEAVES", 1)
    monkeypatch.setattr(open_pictures, "SIZE", (48, 32))
    return folder


def test_every_kind_of_package_is_read_and_reruns_agree(packages, tmp_path):
    for output in ("one", "two"):
        open_pictures.main([str(packages), str(tmp_path / output)])
    files = {file.name: file.read_bytes() for file in (tmp_path / "one").iterdir()}
    assert files == {file.name: file.read_bytes() for file in (tmp_path / "two").iterdir()}
    assert set(files) == {"dead-leaves-00.png"} | {
        f"{package}-a{end}.png" for package in "abc" for end in ("", "-0", "-1")
    }
    original = Image.open(io.BytesIO(picture(1)))
    half = Image.open(io.BytesIO(files["b-a.png"]))
    assert np.array_equal(half, original.resize((50, 35), Image.Resampling.LANCZOS))
    assert Image.open(io.BytesIO(files["b-a-1.png"])).size == (48, 32)


def test_a_missing_package_is_named_and_another_file_refused(packages, tmp_path):
    (packages / "b-1.whl").unlink()
    with pytest.raises(FileNotFoundError, match=r"b-1\.whl is missing; put @scope/b 1 into"):
        open_pictures.main([str(packages), str(tmp_path / "output")])
    (packages / "a_1_all.deb").write_bytes(b"!<arch>\n")
    with pytest.raises(ValueError, match=r"a_1_all\.deb is not a Debian package"):
        open_pictures.main([str(packages), str(tmp_path / "output")])


def test_the_table_lists_free_photographs_once():
    table = json.loads(open_pictures.TABLE.read_text(encoding="utf-8"))
    assert {source["licence"] for source in table} == {"CC0-1.0", "public domain"}
    assert all(source["stated"] for source in table)
    assert all("author" in {**source, **p} for source in table for p in source["pictures"])
    files = [(source["package"], p["file"]) for source in table for p in source["pictures"]]
    assert len(files) == len(set(files))
