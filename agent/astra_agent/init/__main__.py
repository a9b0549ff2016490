"""Build what runs for containers, and print where it is."""

import sys

from astra_agent.errors import HostFault
from astra_agent.init import logger, program

try:
    print(program())
    print(logger())
except HostFault as error:
    sys.exit(str(error))
