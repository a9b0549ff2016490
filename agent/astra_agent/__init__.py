"""The daemon of one machine: its inventory, what a slot gets, and the slots themselves on containerd."""
