"""Distributed training for PyTorch with one declarative object."""
