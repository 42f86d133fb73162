"""One ext_proc stream as a state machine: the events that Envoy sends, the replies to them."""
