"""Units of memory."""

MIB = 1024 * 1024  # bytes
