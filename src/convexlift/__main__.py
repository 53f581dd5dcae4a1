"""``convexlift`` and ``python -m convexlift``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what it needs."""
    try:
        from convexlift.cli import app
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("convexlift"):
            raise
        sys.exit(
            f"convexlift: the command line needs {error.name}. "
            'Install its extra: pip install "convexlift[cli]"'
        )
    app()


if __name__ == "__main__":
    main()
