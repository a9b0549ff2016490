"""Every error of ours says what follows from it: its HTTP status, its exit status, whether trying again makes sense."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from astra_agent.errors import HANDLING, AstraError, handling

PACKAGES = ("astra_agent", "astra_cli", "astra_dns", "astra_driver", "astra_gang", "astra_netprobe")


def subclasses(cls: type[AstraError]) -> Iterator[type[AstraError]]:
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def test_every_error_of_every_part_has_a_row() -> None:
    for name in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(name).__path__, f"{name}."):
            importlib.import_module(module.name)
    rowless = [cls.__qualname__ for cls in subclasses(AstraError) if not any(base in HANDLING for base in cls.__mro__)]
    assert rowless == []


def test_the_row_of_an_error_is_that_of_its_nearest_class() -> None:
    assert {cls for cls in HANDLING if cls.__base__ is not AstraError} == set()
    for cls, row in HANDLING.items():
        assert handling(cls.__new__(cls)) == row
    assert handling(ValueError("a bug")).exit == 70


def test_what_is_refused_for_the_callers_fault_is_never_tried_again() -> None:
    assert [cls.__name__ for cls, row in HANDLING.items() if row.http < 500 and row.retry] == []
