"""Long, bounded attacks on the library: hostile problems, files and clients."""
