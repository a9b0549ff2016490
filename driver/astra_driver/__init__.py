"""Nomad's door: a task driver and a device plugin that translate to the agent's unix socket."""
