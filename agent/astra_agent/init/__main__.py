"""Build the first process of containers, and print where it is."""

import sys

from astra_agent.errors import HostFault
from astra_agent.init import program

try:
    print(program())
except HostFault as error:
    sys.exit(str(error))
