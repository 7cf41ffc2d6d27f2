"""Networks made from a configuration. Need torch."""
