"""What a user's script calls: init, distributed_model, distributed_optimizer, servers, weights."""
