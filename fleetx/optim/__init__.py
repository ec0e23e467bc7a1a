"""Update rules as ordinary optimizers of torch; they live with their strategies."""
