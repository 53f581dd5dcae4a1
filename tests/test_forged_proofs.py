"""Every file in tests/proofs is confirmed, or refused for the right reason."""

from __future__ import annotations

import pytest
from forged_proofs import CASES, FOLDER, write

from convexlift.proof_checker import ProofRejected, main, verify


@pytest.mark.parametrize("name", CASES)
def test_true_proofs_are_confirmed_and_others_refused_by_name(name, capsys):
    path, (reason, _) = FOLDER / f"{name.replace(' ', '_')}.proof", CASES[name]
    if not reason:
        for verdict in verify(path):
            assert verdict.lower_bound <= verdict.objective
            assert (
                0 <= verdict.objective - verdict.lower_bound <= max(0.2 * verdict.objective, 1e-12)
            )
        return
    with pytest.raises(ProofRejected) as refused:
        verify(path)
    assert reason in str(refused.value)
    assert "it is malformed" not in str(refused.value)
    assert main([str(path)]) == 1
    said = capsys.readouterr()
    assert not said.out
    assert said.err.removesuffix("\n").isprintable()


def test_the_stored_files_are_those_that_the_generator_writes(tmp_path):
    stored = {path.relative_to(FOLDER): path.read_bytes() for path in FOLDER.rglob("*.proof")}
    made = [write(name, tmp_path) for name in CASES]
    assert {path.relative_to(tmp_path): path.read_bytes() for path in made} == stored
