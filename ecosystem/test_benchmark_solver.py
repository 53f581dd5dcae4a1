"""The solver for deepinv's benchmarks, run by benchopt on pictures of this package."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pd = pytest.importorskip("pandas")

SOLVER = Path(__file__).parent / "deepinv_benchmark" / "convexlift_solver.py"

OBJECTIVE = '''
import deepinv
from benchopt import BaseObjective
from torch.utils.data import DataLoader


class Objective(BaseObjective):
    """PSNR by deepinv.test, as theirs."""

    name = "PSNR"
    sampling_strategy = "run_once"

    def set_data(self, dataset, physics):
        self.dataset, self.physics = dataset, physics

    def get_objective(self):
        return dict(train_dataset=self.dataset, physics=self.physics)

    def evaluate_result(self, model):
        found = deepinv.test(
            model, DataLoader(self.dataset), self.physics, online_measurements=True,
            metrics=[deepinv.loss.PSNR(center_crop=-16)], compare_no_learning=False,
            device="cpu", show_progress_bar=False, verbose=False,
        )
        solution = getattr(model, "solution", None)
        return dict(value=-found["PSNR"], psnr=found["PSNR"],
                    gap=1.0 if solution is None else float(solution.gap.max()))

    def get_one_result(self):
        raise NotImplementedError
'''
DATASET = """
import deepinv
import torch
from benchopt import BaseDataset

from convexlift.images import load_example

physics = deepinv.physics


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, i):
        x = load_example("camera")[0, :, 64:128, 64:128]
        return torch.cat([x, x**1.5, 0.5 * x + 0.2])


class Dataset(BaseDataset):
    name = "pictures"
    parameters = {"task": ["denoising", "deblurring"]}

    def get_data(self):
        generator = torch.Generator().manual_seed(0)
        if self.task == "denoising":
            A = physics.Denoising(physics.GaussianNoise(0.1, rng=generator))
        else:
            blur = physics.functional.gaussian_blur(sigma=(2.0, 2.0))
            A = physics.Blur(blur, noise_model=physics.GaussianNoise(0.05, rng=generator))
        return dict(dataset=Pictures(), physics=A)
"""
TV = '''
import deepinv
from benchopt import BaseSolver


class Solver(BaseSolver):
    """deepinv's total variation, which ArtifactRemoval applies to A* y."""

    name = "TVDenoiser"
    sampling_strategy = "run_once"

    def set_objective(self, train_dataset=None, physics=None):
        self.model = deepinv.models.ArtifactRemoval(deepinv.models.TVDenoiser())

    def run(self, _):
        pass

    def get_result(self):
        return dict(model=self.model)
'''


def test_the_solver_runs_in_benchopt_and_certifies(tmp_path):
    folder = tmp_path / "benchmark"
    for name, text in {"objective.py": OBJECTIVE, "datasets/pictures.py": DATASET,
                       "solvers/tv.py": TV}.items():  # fmt: skip
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    shutil.copy(SOLVER, folder / "solvers")
    command = [sys.executable, "-m", "benchopt", "run", str(folder), "--no-plot", "-r", "1",
               "--output", "result", "-n", "1"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (file,) = (folder / "outputs").glob("result*.parquet")
    rows = pd.read_parquet(file)
    found = {
        (row["solver_name"].split("[")[0], "deblurring" in row["dataset_name"] or
         row.get("p_dataset_task") == "deblurring"): row
        for _, row in rows.iterrows()
    }  # fmt: skip
    for blurred in (False, True):
        ours, theirs = found["convexlift", blurred], found["TVDenoiser", blurred]
        print(blurred, ours["objective_psnr"], theirs["objective_psnr"])
        assert ours["objective_gap"] <= 1e-3
        assert ours["objective_psnr"] > theirs["objective_psnr"]
