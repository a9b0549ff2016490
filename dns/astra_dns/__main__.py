"""`python -m astra_dns`."""

import sys

from astra_dns.main import main

if __name__ == "__main__":
    sys.exit(main())
