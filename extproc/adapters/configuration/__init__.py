"""The models document, from a file or a ConfigMap: parsed, compared and put in force."""
