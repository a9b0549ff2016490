"""The `astra` command."""
