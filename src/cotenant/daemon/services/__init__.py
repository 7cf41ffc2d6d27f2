"""What the daemon does around attempts besides starting them: environments, MPS, step rates, notifications."""
