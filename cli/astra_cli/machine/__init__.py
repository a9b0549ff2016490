"""A machine as its inventory has it: answers as JSON, a picture in the terminal, and a capture of it."""
