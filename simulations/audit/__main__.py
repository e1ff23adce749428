"""``python -m simulations.audit RUNFILE --output DIR [--json]``."""

import sys

from simulations.audit.run import main

sys.exit(main())
