"""
What `astra … install` puts on a machine, and takes away again: plans say what belongs where, `placing` makes it so.
"""
