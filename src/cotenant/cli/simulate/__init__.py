"""`cotenant simulate`: replays and forecasts."""
