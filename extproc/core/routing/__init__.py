"""From a model name to a decision: the catalog, splits and the router."""
