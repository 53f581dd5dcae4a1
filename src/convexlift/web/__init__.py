"""The web page of ``convexlift serve``: jobs of visitors, their runs, and the display."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())
