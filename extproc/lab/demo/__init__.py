"""`extproc demo` and `extproc run`: the whole data path on loopback, under chat traffic."""
