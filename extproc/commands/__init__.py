"""The commands of `extproc`: a module for each."""
