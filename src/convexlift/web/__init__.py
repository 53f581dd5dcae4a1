"""The web page of ``convexlift serve``: what is asked for, how it is run, and what is shown."""

import logging

logging.getLogger(__name__).addHandler(logging.NullHandler())
