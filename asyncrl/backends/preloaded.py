"""The fork server's last import. All workers share the memory of modules imported by now, and keep sharing it.

Nothing imported before may start a thread or run a torch operation: threads do not survive a fork, but their locks do.
"""

from __future__ import annotations

import gc

# Garbage collection in a child would write to the header of every object, and so copy these pages for each worker.
gc.freeze()
