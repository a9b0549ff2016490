"""The network probe: plan of rounds, transports, measurements, verdict."""
