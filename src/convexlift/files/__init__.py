"""Picture files: readers and writers, limits on what files declare, atomic writing."""
