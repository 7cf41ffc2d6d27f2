"""Launch, watch and stop attempts."""
