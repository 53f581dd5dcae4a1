"""``benchmarks/all_tables.py`` writes what it gets, and names what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.slow
def test_a_benchmark_that_fails_or_is_late_does_not_stop_the_others(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import all_tables

    jobs = [
        all_tables.Job("wrong", "solver_memory.py", ["--no-such-option"]),
        all_tables.Job("small", "solver_memory.py", ["--sizes", "16", "--iterations", "2"]),
    ]
    monkeypatch.setattr(all_tables, "on_cpu", lambda data, output: jobs)
    monkeypatch.setattr(all_tables, "on_gpu", lambda data, output: [])
    (tmp_path / "faces").mkdir()
    (tmp_path / "faces" / "mask.png").touch()
    all_tables.main(["--data", str(tmp_path), "--output", str(tmp_path / "out")])
    text = (tmp_path / "out" / "tables.md").read_text()
    assert text.index("## wrong") < text.index("unrecognized arguments: --no-such-option")
    assert "python benchmarks/solver_memory.py --sizes 16 --iterations 2" in text
    assert "peak MB" in text.split("## small")[1]
    assert "peak MB" in capsys.readouterr().out
    late = jobs[1].run(deadline=0.0, gpu=False)
    assert late.endswith("Ran out of time.\n")


def test_data_without_faces_are_refused_at_once(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import all_tables

    with pytest.raises(SystemExit):
        all_tables.main(["--data", str(tmp_path), "--output", str(tmp_path / "out")])
    assert "has no faces/mask.png" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
