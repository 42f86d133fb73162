"""The models document: read, compared, put in force; from a file or a ConfigMap."""
