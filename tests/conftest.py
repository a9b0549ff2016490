"""Loaded by every test run: the levels."""

import pytest

pytest_plugins = ("tests.levels",)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden files anew; read the difference")
