"""What models consist of: kinds of operators and layers, parts of a forward, recorded work."""
