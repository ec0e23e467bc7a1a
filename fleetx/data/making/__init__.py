"""``fleetx data make``: small data sets that are drawn, so that everything runs offline."""
