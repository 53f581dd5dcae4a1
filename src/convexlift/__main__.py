"""``convexlift`` and ``python -m convexlift``."""

from __future__ import annotations

import sys

from convexlift import startup


def main() -> None:
    """Run the command line, or say what it needs."""
    startup.end_on_interrupt()
    try:
        from convexlift.cli import app
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("convexlift"):
            raise
        sys.exit(
            f"convexlift: the command line needs {error.name}. "
            'Install its extra: pip install "convexlift[cli]"'
        )
    finally:
        startup.raise_on_interrupt()
    # One name in both forms: shells complete `convexlift`, and no word of `python -m convexlift`.
    app(prog_name="convexlift")


if __name__ == "__main__":
    main()
