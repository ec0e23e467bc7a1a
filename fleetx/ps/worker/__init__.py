"""The side of the workers: connections to the servers, and what carries gradients there."""
