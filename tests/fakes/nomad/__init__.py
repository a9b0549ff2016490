"""
A small Nomad: HTTP on loopback, with answers in the shapes that were recorded from 1.6.5 and 2.0.5.

`cluster.FakeNomad` is its state and its scheduler, `clients` what the machines do, `server` the routes.
"""
