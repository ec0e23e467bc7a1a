"""Where the time of a step goes, and which flag would shorten it: ``fleetx profile``."""
