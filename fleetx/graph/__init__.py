"""Graphs: the forward of a model followed step by step, and cut into consecutive parts."""
