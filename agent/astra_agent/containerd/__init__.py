"""
The adapter for containerd: implements the ports of `astra_agent.runtime` over containerd's gRPC socket.

Nothing of containerd leaves this package: not its words, not its errors, not its messages.
"""
