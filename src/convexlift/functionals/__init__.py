"""Convex functionals: data fidelities, the box, and the terms of the lifted problem."""
