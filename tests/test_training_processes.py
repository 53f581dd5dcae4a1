"""Several processes train as one does."""

from __future__ import annotations

import socket
import sys

import forked
import pytest
import torch
import training_runs
from quick_training import rows, same_weights
from training_runs import KINDS, STEPS, crops

import convexlift as cl
from convexlift.images import save_image

pytestmark = pytest.mark.single_precision


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    images = crops(6)
    for i in range(len(images)):
        save_image(folder / "pictures" / f"{i}.png", images[i])
    torch.set_default_dtype(torch.float32)
    cl.save(cl.networks.ridge(channels=2, kernel=3), folder / "tiny")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    announced = {  # by torchrun
        "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    code = f"import training_runs; training_runs.main('share', {str(folder)!r})"
    outputs = [folder / f"printed-{rank}.txt" for rank in (0, 1)]
    processes = [
        forked.start(code, folder, {**announced, "RANK": str(rank), "LOCAL_RANK": str(rank)}, path)
        for rank, path in enumerate(outputs)
    ]
    for process, path in zip(processes, outputs, strict=True):
        process.join(300)
        assert process.exitcode == 0, path.read_text()
    return folder


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.sampled(5)
def test_two_processes_take_the_steps_of_one_also_after_a_restart(shared, kind):
    torch.set_default_dtype(torch.float64)  # rounding is then far below the tolerance
    alone = training_runs.run(kind, None)
    found = rows(shared / kind)
    losses = torch.tensor([row["loss"] for row in alone.rows[1:]])
    others = torch.tensor([float(row["loss"]) for row in found[1:]])
    assert len(others) == STEPS
    assert float((losses - others).abs().max()) <= 1e-5 * float(losses.abs().max())
    for name in ("psnr", "weight"):
        expected = [row[name] for row in alone.rows if name in row]
        assert [float(row[name]) for row in found if row[name]] == pytest.approx(expected, rel=1e-5)
    first, second = (torch.load(shared / f"{kind}-{rank}.pt", weights_only=True) for rank in (0, 1))
    assert same_weights(first, second)
    for name, value in alone.network.state_dict().items():
        torch.testing.assert_close(first[name], value, rtol=1e-5, atol=1e-8)


def test_a_batch_that_cannot_be_shared(shared):
    for rank in (0, 1):
        text = (shared / f"uneven-{rank}.txt").read_text()
        assert text == "2 processes cannot share a batch of 3 evenly; write batch_size=4"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_threads_end_with_the_group(shared):
    """Those of Gloo would abort the process, or hang, if Python ended before they do."""
    for rank in (0, 1):
        threads = (shared / f"threads-{rank}.txt").read_text().split()
        assert threads
        assert not [name for name in threads if "gloo" in name]


def test_one_process_of_the_command_line_talks_and_writes(shared):
    first, second = ((shared / f"command-2-{rank}.txt").read_text() for rank in (0, 1))
    assert first.startswith("0\nMethod ")
    assert "\nstep 0 of 2" in first
    assert "cl.load" in first
    assert second == "0\n"
    card = cl.load(shared / "output-2" / "model").card
    assert "2 processes" in card.machine
    assert card.command.startswith("torchrun --nproc-per-node 2 -m convexlift ")
    first, second = ((shared / f"command-3-{rank}.txt").read_text() for rank in (0, 1))
    assert first.startswith("2\nMethod ")
    said = "\nconvexlift: 2 processes cannot share a batch of 3 evenly; write batch_size=4.\n"
    assert first.endswith(said)
    assert second == "2\n"
    assert not (shared / "output-3" / "log.csv").exists()
