"""One loop, several methods, one kind of result."""
