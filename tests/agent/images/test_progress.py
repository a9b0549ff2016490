"""What a user reads while an image is brought."""

from __future__ import annotations

import pytest

from astra_agent.containerd.progress import Progress, size_words


class Watch:
    """Progress with a clock that the test turns."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.progress = Progress("busybox:1.36", "Pulling", self.said.append, lambda: self.now)


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "0 B"), (512, "512 B"), (2_100_000, "2.1 MB"), (999_999, "1.0 MB"), (14_040_000_000, "14.0 GB")],
)
def test_sizes_are_in_powers_of_ten(size_bytes: int, words: str) -> None:
    assert size_words(size_bytes) == words


def test_a_pull_says_how_much_of_how_much() -> None:
    watch = Watch()
    watch.progress.expect(2_100_000)
    watch.now = 1
    watch.progress.receive(903_000)

    assert watch.said == [
        "Pulling busybox:1.36: 0 % of 2.1 MB (0 B)",
        "Pulling busybox:1.36: 43 % of 2.1 MB (903 kB)",
    ]


def test_the_size_is_told_as_soon_as_it_is_known() -> None:
    """Nothing else may come for long."""
    watch = Watch()
    watch.progress.asks()
    watch.progress.expect(2_100_000)

    assert watch.said == ["Pulling busybox:1.36", "Pulling busybox:1.36: 0 % of 2.1 MB (0 B)"]


def test_a_slow_pull_of_a_large_image_says_something_else_each_second() -> None:
    watch = Watch()
    watch.progress.expect(14_000_000_000)
    watch.progress.receive(1_700_000_000)
    for _ in range(10):
        watch.now += 1
        watch.progress.receive(1_100_000)

    assert len(set(watch.said)) == 11
    assert watch.said[-1] == "Pulling busybox:1.36: 12 % of 14.0 GB (1.711 GB)"


def test_a_pull_of_many_pieces_says_a_few_sentences_a_second() -> None:
    watch = Watch()
    watch.progress.expect(1_000_000)
    for _ in range(999):
        watch.now += 0.001
        watch.progress.receive(1000)

    assert len(watch.said) <= 3


def test_unpacking_is_the_news_once_everything_is_here() -> None:
    watch = Watch()
    watch.progress.expect(100)
    watch.progress.receive(50)
    watch.progress.unpacks(1, 2)
    watch.progress.receive(50)
    watch.progress.unpacks(2, 2)

    assert watch.said == ["Pulling busybox:1.36: 0 % of 100 B (0 B)", "Unpacking busybox:1.36: layer 2 of 2"]


def test_an_image_of_one_layer_counts_none() -> None:
    watch = Watch()
    watch.progress.expect(0)
    watch.progress.unpacks(1, 1)

    assert watch.said == ["Unpacking busybox:1.36"]


def test_what_has_to_come_again_is_taken_back() -> None:
    watch = Watch()
    watch.progress.expect(100)
    watch.now = 1
    watch.progress.receive(60)
    watch.progress.receive(-60)
    watch.now = 2
    watch.progress.receive(10)

    assert watch.said[-1] == "Pulling busybox:1.36: 10 % of 100 B (10 B)"
