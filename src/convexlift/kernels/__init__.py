"""Triton kernels on plain tensors, imported only where they are used."""
