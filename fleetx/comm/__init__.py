"""What several strategies share: averages over ranks, equal replicas, norms, nested tensors."""
