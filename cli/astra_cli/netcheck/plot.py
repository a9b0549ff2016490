"""
The matrix of pairs as a picture in a file: a heat map, drawn by matplotlib, which is installed only where it is wanted.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from astra_agent.errors import InvalidRequest
from astra_netprobe.matrix import Matrix

KINDS = (".svg", ".png")
NUMBERS_MAX = 16
"""Machines up to which each cell says its number."""
NAMES_MAX = 64
"""Machines up to which each has its name beside its row; beyond it, every few."""
_COLOURS = "viridis"
"""Darker is slower, in grey and for eyes that tell no red from green as well."""
_NOT_MEASURED = "#e8e8e8"
_BLAMED = "#c00000"
_DOTS_PER_INCH = 150
_SENTENCE_WIDTH = 96

Draw = Callable[[Matrix, str, Sequence[str]], None]
"""Of a matrix, with a sentence above it and the machines to blame."""


def to(path: Path) -> Draw:
    """
    What draws into *path*. Asked for before anything is measured, so that a probe is not made in vain.

    Raises:
        InvalidRequest: The file's kind, its folder, or the library for it.
    """
    if path.suffix.lower() not in KINDS:
        raise InvalidRequest(f"--plot {path}: a picture is {' or '.join(KINDS)}; name it so", "--plot")
    if not path.absolute().parent.is_dir():
        raise InvalidRequest(f"--plot {path}: there is no folder {path.absolute().parent}; make it first", "--plot")
    try:
        from matplotlib import rc_context  # takes a second, and is there only where it is wanted
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidRequest(
            "--plot needs matplotlib, which is not installed: pip install 'astraeus[plot]'", "--plot"
        ) from error

    def draw(matrix: Matrix, sentence: str, blamed: Sequence[str]) -> None:
        try:
            with rc_context({"svg.fonttype": "none"}):  # text stays text: it can be searched, and is read out
                figure = Figure(layout="constrained", dpi=_DOTS_PER_INCH)
                _draw(figure, matrix, sentence, blamed)
                figure.savefig(path)
        except OSError as error:
            raise InvalidRequest(f"--plot {path} can't be written: {error.strerror}", "--plot") from error

    return draw


def _draw(figure: Any, matrix: Matrix, sentence: str, blamed: Sequence[str]) -> None:
    count = len(matrix.names)
    side = min(14.0, max(4.5, 2.2 + 0.55 * count))
    figure.set_size_inches(side + 1.6, side)
    axes = figure.add_subplot()
    best = matrix.best * 1e-9 or 1.0
    values = [[float("nan") if rate is None else rate * 1e-9 for rate in row] for row in matrix.rates]
    axes.set_facecolor(_NOT_MEASURED)
    picture = axes.imshow(values, cmap=_COLOURS, vmin=0.0, vmax=best)
    figure.colorbar(picture, ax=axes, label="Gbit/s", shrink=0.8)
    _name(axes, matrix.names, blamed)
    axes.set_xlabel("receiver (grey: not measured)")
    axes.set_ylabel("sender")
    axes.set_title(textwrap.fill(sentence, int(_SENTENCE_WIDTH * side / 9)), loc="left", fontsize=9)
    if count <= NUMBERS_MAX:
        for row, rates in enumerate(values):
            for column, rate in enumerate(rates):
                if rate == rate:  # measured
                    ink = "white" if rate < 0.6 * best else "black"
                    axes.text(column, row, f"{rate:.2f}", ha="center", va="center", color=ink, fontsize=8)


def _name(axes: Any, names: Sequence[str], blamed: Sequence[str]) -> None:
    step = -(-len(names) // NAMES_MAX)
    shown = [i for i, name in enumerate(names) if i % step == 0 or name in blamed]
    size = 8 if len(names) <= NUMBERS_MAX else 6
    axes.set_xticks(shown, [names[i] for i in shown], rotation=90 if len(names) > 6 else 0, fontsize=size)
    axes.set_yticks(shown, [names[i] for i in shown], fontsize=size)
    for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
        if label.get_text() in blamed:
            label.set_color(_BLAMED)
            label.set_fontweight("bold")
