"""Files and tiles reconstructed by workers of a Dask cluster: the same bytes."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from cluster_runs import assert_same, large_problem, many, pictures, tiled, with_pictures
from reconstruct_runs import OPTIONS, run

import convexlift as cl
from convexlift import cluster
from convexlift.reconstruction import InputError, weight
from convexlift.reconstruction.pictures import Denoiser
from convexlift.solvers import tile_tasks, tiles

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.single_precision


@pytest.fixture(scope="module")
def client():
    """A scheduler and two workers, which are threads of this process."""
    with distributed.Client(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
    ) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    return with_pictures(tmp_path, 4, 16)


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


@pytest.mark.parametrize("sweeps", [1, 2])
def test_the_tiles_of_one_image_are_tasks(client, tmp_path, sweeps, monkeypatch):
    if sweeps == 2:  # the first one leaves tiles far from solved
        monkeypatch.setattr(tiles, "SHARE", 30.0)
    options = tiled(tmp_path, 3e-3, sweeps=sweeps)
    here = cl.solve_tiles(large_problem(), **options)
    seen = []
    there = cl.solve_tiles(large_problem(), client=client, callback=seen.append, **options)
    assert len(here.history) == len(there.history) == sweeps
    assert_same(here, there)
    assert [each.iteration for each in seen] == list(range(1, 4 * sweeps + 1))
    assert not list(tmp_path.iterdir())


def test_a_guide_reads_on_workers_what_it_reads_here(client, tmp_path):
    problem = replace(large_problem((48, 64)), regularizer=cl.load("photo-open"), noise=0.05)
    options = tiled(tmp_path, 1e-2)
    here = cl.solve_tiles(problem, **options)
    there = cl.solve_tiles(problem, client=client, **options)
    assert_same(here, there)
    assert torch.equal(here.weight_map, there.weight_map)


def test_a_tile_that_fails_is_reported(client, tmp_path, monkeypatch):
    def fail(self, task):
        raise RuntimeError(f"tile {task.number} is torn")

    monkeypatch.setattr(tile_tasks.TileJob, "solve", fail)
    with pytest.raises(RuntimeError, match=r"tile \d is torn"):
        cl.solve_tiles(
            large_problem(), client=client, tiles=cl.Tiles(size=32, overlap=16, folder=tmp_path)
        )
    assert not list(tmp_path.iterdir())


def test_one_large_file_is_solved_by_all_workers(tmp_path, client):
    folder = with_pictures(tmp_path, 1, 150)
    many(folder, "here", tiles=128)
    used = set()
    original = tile_tasks.TileJob.solve

    def noted(self, task):
        used.add(distributed.get_worker().address)
        return original(self, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tile_tasks.TileJob, "solve", noted)
        result = many(folder, "there", tiles=128, client=client)
    assert len(result.records) == 1, result.failures
    assert pictures(folder / "here") == pictures(folder / "there")
    assert used
    assert used <= set(client.nthreads())


def test_one_small_file_is_prepared_by_a_worker_alone(tmp_path, client, monkeypatch):
    folder = with_pictures(tmp_path, 1, 16)
    rules, prepared = [], []
    choose, prepare = weight.choose_weight, Denoiser.prepare

    def noted_rule(rule, *rest):
        rules.append(rule)
        return choose(rule, *rest)

    def noted(self, *rest):
        prepared.append(self)
        return prepare(self, *rest)

    monkeypatch.setattr(weight, "choose_weight", noted_rule)
    result = many(folder, "out", weight="auto", client=client)
    assert len(result.records) == 1, result.failures
    assert rules.count("auto") == 1
    monkeypatch.setattr(Denoiser, "prepare", noted)
    again = many(folder, "out", weight="auto", client=client, resume=True)
    assert (len(again.earlier), prepared) == (1, [])


def double(item, more):
    if item == 3:
        raise RuntimeError("three is too many")
    return 2 * item + more


def test_an_item_that_fails_stops_no_other(client, tmp_path):
    found = dict(cluster.completed(client, double, range(100), 1, folder=tmp_path))
    assert str(found.pop(3)) == "three is too many"
    assert found == {i: 2 * i + 1 for i in range(100) if i != 3}


class ShrinkingCluster:
    """A client that loses a worker at the second look, when all tasks under way end at once."""

    status = "running"

    def __init__(self):
        self.looks, self.futures = 0, []

    def nthreads(self):
        self.looks += 1
        for future in self.futures:
            future.ended(future)
        self.futures = []
        return {"one": 8, "two": 8} if self.looks == 1 else {"one": 8}

    def run(self, function, workers, on_error):
        return dict.fromkeys(workers, "")

    def submit(self, function, item, *arguments, pure, workers):
        future = Future()
        future.result = function(item, *arguments)
        self.futures.append(future)
        return future

    def gather(self, futures):
        return [future.result for future in futures]


class Future:
    status = "finished"

    def add_done_callback(self, call):
        self.ended = call


def test_a_worker_that_leaves_takes_no_tasks_with_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0.0)
    items = [i for i in range(100) if i != 3]
    found = dict(cluster.completed(ShrinkingCluster(), double, items, 1, folder=tmp_path))
    assert sorted(found) == items


class DesertedCluster(ShrinkingCluster):
    """A client whose workers all leave once their tasks are done."""

    def nthreads(self):
        return super().nthreads() if self.looks == 0 else super().nthreads() and {}


@pytest.mark.parametrize("count", [1, 32])
def test_nobody_waits_for_workers_when_nothing_is_left_to_do(count, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "LOOK_EVERY", 0.0)
    items = range(4, 4 + count)  # 32 tasks are as many as 16 threads take at a time
    with pytest.warns(UserWarning, match="no workers"):
        found = dict(cluster.completed(DesertedCluster(), double, items, 1, folder=tmp_path))
    assert sorted(found) == list(items)


@pytest.mark.slow
def test_ten_thousand_tasks_do_not_fill_the_scheduler(client, tmp_path):
    most = 0
    for count, _ in enumerate(cluster.completed(client, double, range(10_000), 1, folder=tmp_path)):
        if count % 500 == 0:
            most = max(
                most, client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
            )
    assert count == 9_999
    assert most < 100


def test_workers_that_do_not_see_the_folder_get_no_work(client, tmp_path):
    with (
        pytest.raises(InputError, match="results need a folder that all machines share"),
        pytest.warns(UserWarning, match="gets no work"),
    ):
        list(cluster.completed(client, double, range(3), 1, folder=tmp_path / "elsewhere"))


def test_workers_of_another_version_get_no_work(client, tmp_path, monkeypatch):
    worker = next(iter(client.nthreads()))
    ask = cluster._Crew._ask

    def one_is_old(self, workers):
        return ask(self, workers) | {worker: "it has convexlift 0.0.1, and this is 0.1.0"}

    monkeypatch.setattr(cluster._Crew, "_ask", one_is_old)
    with pytest.warns(UserWarning, match="it has convexlift 0.0.1"):
        found = list(cluster.completed(client, at, range(20), folder=tmp_path))
    assert {address for _, address in found} == set(client.nthreads()) - {worker}


def test_workers_need_no_glibc(client, tmp_path, monkeypatch):
    def of_windows(name):
        raise TypeError("bad argument type for built-in operation")

    monkeypatch.setattr("ctypes.CDLL", of_windows)
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    assert len(list(cluster.completed(client, double, range(2), 1, folder=tmp_path))) == 2


@pytest.mark.parametrize("trimming", [True, False])
def test_workers_keep_the_memory_that_the_next_operation_needs(
    client, tmp_path, monkeypatch, trimming
):
    """Under Dask's nannies, which ask for the opposite by a variable."""
    called = []
    libc = SimpleNamespace(mallopt=lambda *values: called.append(values))
    monkeypatch.setattr("ctypes.CDLL", lambda name: libc)
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    if trimming:
        monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "65536")
    list(cluster.completed(client, double, range(2), 1, folder=tmp_path))
    assert set(called) == ({(-1, 2**26), (-3, 2**25)} if trimming else set())


def at(item):
    return distributed.get_worker().address


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
    monkeypatch.setattr(cluster, "SECONDS", 0.5)
    with pytest.raises(InputError, match=said), cluster.connected(scheduler):
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
    with cluster.connected("local[1]") as other:
        assert other.submit(double, 1, 1).result() == 3
