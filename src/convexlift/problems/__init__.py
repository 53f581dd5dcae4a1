"""The variational problem, its lift to a saddle-point problem, and certificates."""
