"""The last thing the fork server imports: what has been imported by now is shared by all workers, and stays so.

Nothing imported before may start a thread or run a torch operation: a thread does not survive a fork, its locks do.
"""

from __future__ import annotations

import gc

# A collection in a child would write to the header of every object and so copy these pages for each worker.
gc.freeze()
