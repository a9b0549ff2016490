"""`python -m astra_dns`."""

import sys

from astra_dns.main import main

sys.exit(main())
