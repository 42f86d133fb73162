"""Discovery: keeps the endpoints of every source of the models document current."""
