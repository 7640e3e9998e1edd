"""Starting, supervising and stopping programs; nothing about runtimes or devices."""
