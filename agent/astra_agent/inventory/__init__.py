"""
What a machine has: a tree of files and its GPU library's answers in, facts and findings out.

Pure: `read` asks a `Root`, which is a real machine (`astra_agent.sysfs`) or a captured one in memory, and never the
machine that it runs on.
"""

from astra_agent.inventory.library import LibraryReading
from astra_agent.inventory.model import Finding, Inventory
from astra_agent.inventory.reading import Besides, read
from astra_agent.inventory.tree import CapturedTree, Root

__all__ = ["Besides", "CapturedTree", "Finding", "Inventory", "LibraryReading", "Root", "read"]
