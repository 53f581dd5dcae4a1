"""Linear operators with exact adjoints."""
