"""``python -m convexlift.proof_checker FILE...``: a line for each image of each file."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import ProofRejected, verify


def main(paths: Sequence[str]) -> int:
    """Print the verdicts; 1 if a file was rejected or could not be read."""
    failures = 0
    for path in paths:
        try:
            for verdict in verify(path):
                print(f"{path}: {verdict}")
        except (ProofRejected, OSError) as error:
            failures += 1
            print(f"rejected: {error}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit("usage: python -m convexlift.proof_checker FILE...")
    sys.exit(main(sys.argv[1:]))
