"""Files that a server is started from: reading, writing, merging and verifying them.

Launch commands are written and parsed in `runtime.command`; studies are stored by `study`.
"""
