"""autofit finds, proves and writes the best launch settings for a llama.cpp-style runtime."""

__version__ = "0.1.0"
