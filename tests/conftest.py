"""Loaded by every test run: the levels."""

pytest_plugins = ("tests.levels",)
