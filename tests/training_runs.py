"""Small trainings, and a program that kills them: for tests of the loop.

main("break", FOLDER)     unbroken, killed and interrupted runs
main("share", FOLDER)     in processes as torchrun starts them: runs of several processes
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import time
from pathlib import Path

import torch

import convexlift as cl
from convexlift.images import example_names, load_example
from convexlift.tasks import GaussianDenoising, Inpainting, SaltAndPepper
from convexlift.training import (
    Adversarial,
    BatchSampler,
    Bilevel,
    ImageSet,
    Implicit,
    Trained,
    TrainingOptions,
    Validation,
    processes,
    start_from_filters_,
    train,
)
from convexlift.training.loop import StepReport

KINDS = ("adversarial", "bilevel", "warm")
SHORT = cl.StopWhen(gap=1e-3, max_iterations=20)
QUICK = cl.StopWhen(gap=1e-2, max_iterations=10)
STEPS = 12


def crops(count: int, size: int = 16) -> ImageSet:
    """Parts of the pictures inside the package."""
    pictures = [load_example(name)[0, 0] for name in example_names()]
    parts = []
    for i in range(count):
        picture, k = pictures[i % len(pictures)], i // len(pictures)
        top, left = (37 * k + 20) % (256 - size), (91 * k + 40) % (256 - size)
        parts.append(picture[top : top + size, left : left + size])
    return ImageSet.from_tensors(parts)


def waves(count: int = 2, size: int = 12) -> ImageSet:
    """Smooth pictures."""
    grid = torch.linspace(0, 1, size)
    waves = [
        0.5 + 0.3 * torch.sin(4 * grid + i)[:, None] * torch.cos(3 * grid) for i in range(count)
    ]
    return ImageSet.from_tensors(waves)


def ingredients(kind: str, batch_size: int = 4):
    """Network, objective, batches and validation of a kind of training."""
    torch.manual_seed(3)
    training, held_out = crops(11).split(1, seed=0)
    implicit = Implicit(damping=1e-2, iterations=5, tolerance=1e-2)
    if kind == "adversarial":
        task = SaltAndPepper(0.25)
        network = cl.networks.baseline(16, channels=4, pool=4, hidden=4)
        start_from_filters_(network, 0.1)
        objective = Adversarial(task, 5.0, paired=False)
    elif kind == "bilevel":
        task = GaussianDenoising(0.1)
        network = cl.networks.ridge(channels=4, kernel=3)
        tasks = [(task, 1.0), (Inpainting(0.3, 0.03), 0.2)]
        objective = Bilevel(tasks, hypergradient=implicit, stop=SHORT)
    else:
        task = GaussianDenoising(0.1)
        network = cl.networks.ridge(channels=4, kernel=3)
        objective = Bilevel(
            [(task, 1.0)], hypergradient=implicit, stop=SHORT, warm_starts=len(training)
        )
    batches = BatchSampler(training, batch_size, flips=True, seed=5, fixed=kind == "warm")
    search = kind == "adversarial"
    weight = 10.0 if search else 1.0
    validation = Validation(task, held_out, weight=weight, search=search, stop=QUICK)
    return network, objective, batches, validation


def run(kind: str, folder: Path | None, *, resume: bool = False, **more) -> Trained:
    """One training of a kind, from its start or its checkpoint."""
    network, objective, batches, validation = ingredients(kind, more.pop("batch_size", 4))
    options = TrainingOptions(
        STEPS, 1e-2, relative=True, schedule="cosine", warm_up=2, clip=1.0, zero_mean=True,
        validate_every=6, checkpoint_every=3,
    )  # fmt: skip
    return train(
        network, objective, batches, options, validation=validation, folder=folder, resume=resume,
        **more,
    )  # fmt: skip


def _child(kind: str, folder: Path) -> int:
    """A process that trains, from the checkpoint if there is one."""
    if pid := os.fork():
        return pid
    status = 1
    try:
        trained = run(kind, folder, resume=True)
        torch.save(trained.network.state_dict(), folder / "final.pt")
        status = 5 if trained.interrupted else 0
    finally:
        os._exit(status)


def _lines(folder: Path) -> int:
    log = folder / "log.csv"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def _hit(kind: str, folder: Path, signals: list[int], chance: random.Random) -> list[int]:
    """Run until done, with these signals at random moments; returns the exit statuses."""
    folder.mkdir(parents=True)
    statuses = []
    for number in [*signals, None]:
        pid = _child(kind, folder)
        if number is not None:
            time.sleep(0.05)  # the log has been rewritten by then
            limit = time.time() + 60
            wanted = min(_lines(folder) + chance.randint(1, 4), STEPS)
            while _lines(folder) < wanted and time.time() < limit:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.02))
            os.kill(pid, number)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        if statuses[-1] == 0:
            break
    return statuses


def break_runs(folder: Path) -> None:
    """Runs of every kind: whole, killed again and again, and asked to stop."""
    for module in ("torch._dynamo", "torch.utils.tensorboard"):
        importlib.import_module(module)  # before the forks: children need not do it again

    chance = random.Random(time.time_ns())
    found = {}
    for kind in ("adversarial", "warm"):
        stops = [signal.SIGINT, signal.SIGTERM]
        found[kind] = {
            "whole": _hit(kind, folder / kind / "whole", [], chance),
            "killed": _hit(kind, folder / kind / "killed", [signal.SIGKILL] * 3, chance),
            "stopped": _hit(kind, folder / kind / "stopped", stops, chance),
        }
    (folder / "found.json").write_text(json.dumps(found))


def lose(report: StepReport) -> None:
    """Ends every process, as torchrun does when it lost one."""
    if report.step == 8:
        raise ConnectionError


def share_runs(folder: Path) -> None:
    """Runs of every kind in the processes of torchrun, and one whose batch cannot be shared.

    Each ends after a step, and goes on from its last checkpoint.
    """
    torch.set_default_dtype(torch.float64)
    with processes.process_group(torch.device("cpu")) as place:
        for kind in KINDS:
            with contextlib.suppress(ConnectionError):
                run(kind, folder / kind, callback=lose)
            trained = run(kind, folder / kind, resume=True)
            torch.save(trained.network.state_dict(), folder / f"{kind}-{place.rank}.pt")
        try:
            run("adversarial", None, batch_size=3)
        except ValueError as error:
            (folder / f"uneven-{place.rank}.txt").write_text(str(error))
        torch.set_default_dtype(torch.float32)
        for batch_size in (2, 3):
            result = _command(folder, batch_size)
            text = f"{result.exit_code}\n{result.output}"
            (folder / f"command-{batch_size}-{place.rank}.txt").write_text(text)
    threads = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (folder / f"threads-{place.rank}.txt").write_text(" ".join(threads))


def _command(folder: Path, batch_size: int):
    """``convexlift train`` on the pictures in the folder."""
    from typer.testing import CliRunner

    from convexlift.cli import app

    arguments = [
        *("train", "adversarial", str(folder / "pictures"), "--preset", "paper-salt-and-pepper"),
        *("--start", str(folder / "tiny"), "--output", str(folder / f"output-{batch_size}")),
        *("--batch-size", str(batch_size), "--held-out", "2", "--steps", "2", "--device", "cpu"),
    ]
    return CliRunner().invoke(app, arguments)


def main(runs: str, folder: str) -> None:
    """The program."""
    torch.set_num_threads(1)
    {"break": break_runs, "share": share_runs}[runs](Path(folder))
