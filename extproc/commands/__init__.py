"""What `extproc` can be told to do: a module for each command."""
