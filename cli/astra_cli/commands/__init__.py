"""The subcommands of `astra`, a file for each family."""
