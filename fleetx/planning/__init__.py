"""Commands around plans: ``fleetx plan`` for a script, ``fleetx cluster`` for the machines."""
