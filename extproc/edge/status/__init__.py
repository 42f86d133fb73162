"""The status page of the admin port."""
