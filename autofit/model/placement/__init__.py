"""Layouts worth a launch: layers and experts divided over devices by their sizes."""
