"""``fleetx chaos``: disturbs real processes as badly as machines do, and counts what was lost."""
