"""The gang coordinator: spec, shape, placement, the gang state machine, engines, store and HTTP API."""
