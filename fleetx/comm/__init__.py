"""What exchanges share: averages of buffers, equal replicas, tensors in whatever holds them."""
