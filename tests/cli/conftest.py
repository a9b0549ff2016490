from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.api import TOKEN, FakeApi


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeApi]:
    """A coordinator that answers, and an environment that names it."""
    fake = FakeApi()
    fake.start()
    monkeypatch.setenv("ASTRA_API", fake.url)
    monkeypatch.setenv("ASTRA_TOKEN", TOKEN)
    monkeypatch.setenv("ASTRA_DEV_STATE", str(tmp_path / "no-cluster"))
    yield fake
    fake.close()
