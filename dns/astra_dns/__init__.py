"""Names: a snapshot of names in, answers out, forwarding of everything else."""
