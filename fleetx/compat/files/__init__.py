"""Files that Paddle wrote, read as data: nothing in them is run."""
