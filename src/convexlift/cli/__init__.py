"""The command line: one module for each command, which registers it, and ``app`` they share."""

from convexlift.cli import demo as demo
from convexlift.cli import experiments as experiments
from convexlift.cli import models as models
from convexlift.cli import reconstruct as reconstruct
from convexlift.cli import serve as serve
from convexlift.cli import train as train
from convexlift.cli import verify as verify
from convexlift.cli.app import app as app

__all__ = [
    "app", "demo", "experiments", "models", "reconstruct", "serve", "train", "verify",
]  # fmt: skip
