"""`fleetx watch` and `fleetrun --watch`: a page that shows a job, from files beside its logs."""
