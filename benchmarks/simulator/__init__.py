"""Speed and fidelity of the simulator."""
