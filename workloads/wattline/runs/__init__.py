"""Runs of a Python program."""
