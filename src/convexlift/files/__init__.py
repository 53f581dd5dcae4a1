"""Picture files of every registered format, limits on declared sizes, atomic writing."""

# Importing these modules registers their formats.
from convexlift.files import npy as npy
from convexlift.files import png_jpeg as png_jpeg
from convexlift.files import tiff as tiff
