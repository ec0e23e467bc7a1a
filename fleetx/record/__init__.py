"""Following user code: calls of torch become nodes with shapes, and graphs become code again."""
