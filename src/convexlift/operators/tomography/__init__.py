"""Tomography: integrals along rays, by Joseph's method, with exact adjoints."""
