"""The pages, one module each: handlers that read the daemon and render templates."""
