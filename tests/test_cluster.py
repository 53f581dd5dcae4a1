"""Files reconstructed by workers of a Dask cluster: the same bytes."""

from __future__ import annotations

import csv
import json
import os
import signal
from functools import partial

import pytest
import torch
from reconstruct_runs import OPTIONS, noisy, run, solved

import convexlift as cl
from convexlift.images import save_image
from convexlift.reconstruction import BatchListener, InputError, distribution

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.single_precision


@pytest.fixture(scope="module")
def client():
    """A scheduler and two workers, which are threads of this process."""
    with distributed.Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as found:
        yield found


def with_pictures(folder, count, size):
    for i in range(count):
        save_image(folder / "in" / f"{i:02d}.png", torch.from_numpy(noisy(size=size, seed=i)))
    return folder


@pytest.fixture
def folder(tmp_path):
    return with_pictures(tmp_path, 4, 16)


def pictures(place):
    return {path.name: path.read_bytes() for path in sorted(place.glob("*.png"))}


def many(folder, output, **more):
    return solved(folder / "in", folder / output, **more)


def test_workers_write_the_bytes_that_a_loop_writes(folder, client):
    (folder / "in" / "bad.png").write_bytes(b"not a picture")
    here, there = many(folder, "here"), many(folder, "there", client=client)
    assert len(pictures(folder / "there")) == 4
    assert pictures(folder / "here") == pictures(folder / "there")
    for result in (here, there):
        assert [source.path.name for source, _ in result.failures] == ["bad.png"]
        assert "not a PNG file" in result.failures[0][1]
    gaps = [{record["output"][-6:]: record["gap"] for record in result.records}
            for result in (here, there)]  # fmt: skip
    assert gaps[0] == gaps[1]


def test_a_run_is_resumed_with_what_is_missing(folder, client):
    many(folder, "out", client=client)
    before = pictures(folder / "out")
    changed = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    (folder / "out" / "01.json").unlink()
    (folder / "out" / "01.png").unlink()
    (folder / "out" / "02.png").write_bytes(b"damaged")
    result = many(folder, "out", client=client, resume=True)
    assert sorted(record["output"][-6:] for record in result.records) == ["01.png", "02.png"]
    assert len(result.earlier) == 2
    assert pictures(folder / "out") == before
    assert (folder / "out" / "00.png").stat().st_mtime_ns == changed[folder / "out" / "00.png"]


def test_results_that_exist_are_not_replaced(folder, client):
    many(folder, "out", client=client)
    with pytest.raises(InputError, match=r"exists; name another output, or add force="):
        many(folder, "out", client=client)


def test_relative_paths_are_those_of_the_caller(folder, client, monkeypatch):
    monkeypatch.chdir(folder)
    cl.save(cl.TotalVariation(), "saved")
    options = OPTIONS | {"regularizer": "saved", "weight": 0.02}
    result = cl.reconstruct_many("in", "out", client=client, **options)
    assert len(result.records) == 4, result.failures
    assert result.records[0]["settings"]["regularizer"] == str(folder / "saved")


def test_one_large_file_is_solved_in_tiles_by_one_worker(tmp_path, client):
    folder = with_pictures(tmp_path, 1, 150)
    many(folder, "here", tiles=128)
    result = many(folder, "there", tiles=128, client=client)
    assert len(result.records) == 1, result.failures
    assert pictures(folder / "here") == pictures(folder / "there")


@pytest.mark.parametrize("ending", [".parquet", ".csv"])
def test_a_table_has_a_row_for_every_file(folder, client, ending):
    (folder / "in" / "bad.png").write_bytes(b"not a picture")
    table = folder / f"all{ending}"
    many(folder, "out", client=client, table=table)
    if ending == ".csv":
        rows = list(csv.DictReader(table.read_text().splitlines()))
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(table).to_pylist()
    assert len(rows) == 5
    for row in rows:
        if row["input"].endswith("bad.png"):
            assert "not a PNG file" in row["error"]
        else:
            record = json.loads((folder / "out" / f"{row['input'][-6:-4]}.json").read_text())
            assert float(row["gap"]) == record["gap"]
            assert row["status"] == "CONVERGED"
            assert not row["error"]


def test_a_table_of_another_kind_is_refused_before_any_work(folder, client):
    with pytest.raises(InputError, match=r"use the ending \.parquet or \.csv"):
        many(folder, "out", client=client, table=folder / "all.xlsx")
    assert not (folder / "out").exists()


class Stopping(BatchListener):
    """Presses Ctrl-C when the first result is written."""

    def finished(self, source, record):
        raise KeyboardInterrupt


def test_ctrl_c_leaves_what_was_not_done(folder, client):
    result = many(folder, "out", client=client, listener=Stopping())
    assert result.interrupted
    assert len(result.records) + len(result.left) == 4
    assert len(result.left) == 3


class WithoutScheduler(BatchListener):
    """Closes the cluster when the first result is written."""

    def __init__(self, cluster):
        self.cluster = cluster

    def finished(self, source, record):
        self.cluster.close()


def test_files_are_left_when_the_scheduler_goes(tmp_path):
    folder = with_pictures(tmp_path, 12, 48)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as gone,
        distributed.Client(gone) as client,
        pytest.warns(UserWarning, match="the scheduler is gone"),
    ):
        result = many(folder, "out", client=client, listener=WithoutScheduler(gone))
    assert result.records
    assert len(result.records) + len(result.left) == 12
    assert not result.failures
    completed = many(folder, "out", resume=True)
    assert len(completed.records) + len(completed.earlier) == 12
    many(folder, "here")
    assert pictures(folder / "out") == pictures(folder / "here")


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        ("local", r"--scheduler is ADDRESS or local\[N\], N >= 1, got 'local'"),
        ("local[0]", r"local\[N\], N >= 1, got 'local\[0\]'"),
        ("http://somewhere", "no scheduler answers at http://somewhere"),
        ("tcp://127.0.0.1:9", "no scheduler answers at tcp://127.0.0.1:9"),
        ("localhost:9", "no scheduler answers at localhost:9"),
    ],
)
def test_schedulers_that_cannot_be_reached_are_named(folder, scheduler, said, monkeypatch):
    monkeypatch.setattr(distribution, "SECONDS", 0.5)
    with pytest.raises(InputError, match=said), distribution.connected(scheduler):
        pass
    result = run("denoise", folder / "in", "-o", folder / "out", "--scheduler", scheduler)
    assert result.exit_code == 2
    assert scheduler in result.output
    assert not list((folder / "out").glob("*.png"))


def test_two_clusters_of_one_machine_do_not_meet(client, monkeypatch):
    """Their web servers have ports of their own."""
    monkeypatch.setattr(
        distributed, "LocalCluster", partial(distributed.LocalCluster, processes=False)
    )
    with distribution.connected("local[1]") as other:
        assert other.submit(max, 1, 3).result() == 3


# Processes ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_that_is_killed_changes_no_byte(tmp_path):
    class Killer(BatchListener):
        done = 0

        def finished(self, source, record):
            self.done += 1
            if self.done == 3:
                os.kill(victim, signal.SIGKILL)

    folder = with_pictures(tmp_path, 12, 48)
    with distribution.connected("local[2]") as client:
        client.wait_for_workers(2, timeout=120)
        victim = next(iter(client.run(os.getpid).values()))
        result = many(folder, "out", client=client, listener=Killer())
    assert len(result.records) == 12, result.failures
    many(folder, "here")
    assert pictures(folder / "out") == pictures(folder / "here")


@pytest.mark.slow
def test_workers_of_another_version_are_named(tmp_path):
    folder = with_pictures(tmp_path, 2, 16)
    with distribution.connected("local[1]") as client:
        client.run(lambda: setattr(__import__("convexlift"), "__version__", "0.0.1"))
        result = many(folder, "out", client=client)
    assert len(result.failures) == 2
    for _, reason in result.failures:
        assert f"a worker has convexlift 0.0.1, and the run was started with {cl.__version__}" in (
            reason
        )


@pytest.mark.slow
def test_two_processes_of_this_machine(tmp_path):
    folder = with_pictures(tmp_path, 3, 16)
    result = run("denoise", folder / "in", "-o", folder / "out", "--scheduler", "local[2]",
                 "--regularizer", "tv", "--sigma", 0.1)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "3 of 3 files done" in result.output
    assert len(pictures(folder / "out")) == 3
