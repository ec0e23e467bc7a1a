"""The kernel: fold a plan over a model and an optimizer, and take batches through it."""
