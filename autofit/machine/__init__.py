"""This machine: memory, processors, GPUs, load, and the lock; nothing about models or runtimes."""
