"""Soak tests: programs that load one part of the package for minutes, and fail if it degrades."""
