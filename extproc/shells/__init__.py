"""Completion of commands and flags in shells: a script for each, made from the argument parsers."""
