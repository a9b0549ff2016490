"""Loaded by every test run: the levels, options of single suites, and the seed of the simulation in the header."""

from __future__ import annotations

import os
import time

import pytest

pytest_plugins = ("tests.levels",)

SEED = "ASTRA_SIMULATE_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write golden files anew; read the difference")


def pytest_configure() -> None:
    os.environ.setdefault(SEED, str(time.time_ns() % 1_000_000))


def pytest_report_header() -> str:
    return f"simulation seed: {os.environ[SEED]} (make simulate SEED={os.environ[SEED]} plays it again)"
