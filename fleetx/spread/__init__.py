"""Tensors that are spread over workers: read, written and computed with as if they were whole."""
