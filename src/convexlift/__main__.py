"""``convexlift`` and ``python -m convexlift``."""

from __future__ import annotations

import sys

from convexlift import startup, threads


def main() -> None:
    """Run the command line, or say which package it needs."""
    startup.end_on_interrupt()  # until a command takes over, in `one_sentence_errors`
    threads.wait_asleep()  # before torch is imported
    try:
        from convexlift.cli import app

        # One name in both forms: shells complete `convexlift`, not `python -m convexlift`.
        app(prog_name="convexlift")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("convexlift"):
            raise
        sys.exit(
            f"convexlift: the command line needs {error.name}. "
            'Install its extra: pip install "convexlift[cli]"'
        )
    finally:
        startup.raise_on_interrupt()


if __name__ == "__main__":
    main()
