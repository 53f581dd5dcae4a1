"""Solvers: one loop, several methods, one result type."""
