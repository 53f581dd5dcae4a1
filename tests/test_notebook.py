"""docs/first-steps.ipynb runs from top to bottom."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

NOTEBOOK = Path(__file__).parents[1] / "docs" / "first-steps.ipynb"


def sources():
    content = json.loads(NOTEBOOK.read_text("utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == "code"]


def test_the_cells_run_in_order_and_do_what_they_say(tmp_path, monkeypatch, capsys):
    """As plain Python, without Jupyter: learned regularizers are ahead, the proof is confirmed."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for cell in sources():
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), space)
    printed = capsys.readouterr().out
    decibels = space["decibels"]
    noisy, restored = decibels(space["noisy"]), decibels(space["result"].x)
    assert restored > noisy + 7
    assert decibels(space["solution"].x) > 28
    assert "no image in the box" in printed
    assert list(tmp_path.iterdir()) == []  # the reader's folder stays as it was


def test_it_is_stored_without_results():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in sources())


@pytest.mark.slow
def test_jupyter_runs_it_and_shows_pictures(tmp_path):
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute(env={**os.environ, "OMP_NUM_THREADS": "1"})
    shown = [
        output.data.get("text/html", "")
        for cell in notebook.cells if cell.cell_type == "code"
        for output in cell.outputs if output.output_type == "execute_result"
    ]  # fmt: skip
    assert len(shown) == 4
    assert all("<img" in html for html in shown)
    assert sum("<svg" in html for html in shown) == 3  # of solutions
