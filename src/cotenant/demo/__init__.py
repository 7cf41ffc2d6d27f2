"""The demonstration: estimates of published jobs, and a published trace on a simulated server."""
