"""Memory over time, load on the host, and the machine lock."""
