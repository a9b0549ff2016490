"""`astra netcheck`: the probe of the network, led from here."""
